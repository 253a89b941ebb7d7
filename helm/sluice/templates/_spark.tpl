{{/* The pods that Spark makes. */}}

{{/* Spark's settings for executors in Kubernetes, as a map. */}}
{{- define "sluice.sparkConf" -}}
{{- $executors := .Values.applier.executors }}
spark.executor.instances: {{ $executors.instances | toString | quote }}
spark.executor.cores: {{ $executors.cores | toString | quote }}
spark.executor.memory: {{ $executors.memory | quote }}
spark.executor.memoryOverhead: {{ $executors.memoryOverhead | quote }}
# Without it Spark counts the pods that were lost in the whole life of the applier, and ends at a few.
spark.executor.failuresValidityInterval: 1h
# A volume of this name is where executors put what does not fit into memory.
spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1.mount.path: /var/lib/sluice/spill
spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1.options.sizeLimit: {{ $executors.spillSizeLimit | quote }}
spark.kubernetes.container.image.pullPolicy: {{ .Values.applier.image.pullPolicy }}
{{- end -}}

{{/* The template of executors' pods. Spark fills in image, command, environment, resources and its own volumes. */}}
{{- define "sluice.executorPod" -}}
{{- $executors := .Values.applier.executors }}
metadata:
  labels:
    {{- include "sluice.labels" . | nindent 4 }}
    app.kubernetes.io/component: executor
    {{- with $executors.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with include "sluice.annotations" . }}{{ . | nindent 2 }}{{ end }}
spec:
  serviceAccountName: {{ include "sluice.executorAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with include "sluice.scheduling" $executors | trim }}{{ . | nindent 2 }}{{ end }}
  containers:
    - name: spark-kubernetes-executor
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
  volumes:
    - name: tmp
      emptyDir:
        sizeLimit: {{ .Values.applier.tmp.sizeLimit }}
{{- end -}}

{{- define "sluice.executorAccount" -}}
{{- include "sluice.serviceAccountName" (dict "root" . "account" .Values.applier.executors.serviceAccount "component" "executor") -}}
{{- end -}}

{{/* The template of a driver's pod that the Spark operator makes. */}}
{{- define "sluice.driverPod" -}}
metadata:
  {{- include "sluice.podMetadata" (dict "root" . "component" "applier" "values" .Values.applier) | nindent 2 }}
spec:
  serviceAccountName: {{ include "sluice.serviceAccountName" (dict "root" . "account" .Values.applier.serviceAccount "component" "applier") }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "sluice.gracePeriod" (dict "root" . "component" "applier" "values" .Values.applier) }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with include "sluice.scheduling" .Values.applier | trim }}{{ . | nindent 2 }}{{ end }}
  {{- with .Values.applier.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: spark-kubernetes-driver
      env:
        {{- include "sluice.applierEnv" . | nindent 8 }}
      {{- with .Values.applier.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: metrics
          containerPort: {{ .Values.metrics.applierPort }}
      {{- include "sluice.probes" (dict "root" . "probes" .Values.applier.probes) | trim | nindent 6 }}
      {{- with .Values.applier.lifecycle }}
      lifecycle:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      volumeMounts:
        {{- include "sluice.applierMounts" . | nindent 8 }}
    {{- with .Values.applier.sidecars }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "sluice.applierVolumes" . | nindent 4 }}
{{- end -}}
