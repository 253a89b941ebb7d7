{{/* What the pods have in common. */}}

{{- define "sluice.configMapName" -}}
{{- if .pipeline -}}
{{- printf "%s-config" (include "sluice.fullname" .) -}}
{{- else -}}
{{- default (include "sluice.fullname" .) .Values.existingConfigMap.name -}}
{{- end -}}
{{- end -}}

{{- define "sluice.configVolume" -}}
- name: config
  {{- if .shared }}
  projected:
    sources:
      {{- range fromJsonArray (include "sluice.served" .) }}
      - configMap:
          name: {{ include "sluice.configMapName" (merge (dict "pipeline" .) $) }}
          items:
            - key: sluice.yaml
              path: {{ . }}.yaml
      {{- end }}
  {{- else }}
  configMap:
    name: {{ include "sluice.configMapName" . }}
    items:
      - key: {{ ternary .Values.existingConfigMap.key "sluice.yaml" (ne .Values.existingConfigMap.name "") }}
        path: sluice.yaml
  {{- end }}
{{- end -}}

{{/* Where the configuration is mounted, as files that do not change while a pod runs: each change makes another pod. */}}
{{- define "sluice.configMount" -}}
{{- if .shared }}
{{- range fromJsonArray (include "sluice.served" .) }}
- name: config
  mountPath: /etc/sluice/pipelines/{{ . }}.yaml
  subPath: {{ . }}.yaml
  readOnly: true
{{- end }}
{{- else }}
- name: config
  mountPath: /etc/sluice/sluice.yaml
  subPath: sluice.yaml
  readOnly: true
{{- end }}
{{- end -}}

{{/* The configurations that a pod reads. */}}
{{- define "sluice.configs" -}}
{{- if .shared }}
{{- include "sluice.each" (dict "root" . "template" "sluice.configMap" "component" "ingest") }}
{{- else }}
{{- include "sluice.configMap" . }}
{{- end }}
{{- end -}}

{{/* Credentials of the object store, as options of spool and lake. They are files, which the kubelet keeps up to date: a pod's environment cannot change. */}}
{{- define "sluice.storeEnv" -}}
{{- range $section, $given := dict "spool" .Values.objectStore.existingSecret "lake" .Values.objectStore.lakeSecret }}
{{- if $given.name }}
{{- range $option, $key := $given.keys }}
- name: SLUICE_{{ upper $section }}__OPTIONS__{{ upper $option }}_FILE
  value: /etc/sluice/{{ $section }}/{{ $option }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "sluice.storeVolumes" -}}
{{- range $section, $given := dict "spool" .Values.objectStore.existingSecret "lake" .Values.objectStore.lakeSecret }}
{{- if $given.name }}
- name: {{ $section }}-keys
  secret:
    secretName: {{ $given.name }}
    defaultMode: 0440
    items:
      {{- range $option, $key := $given.keys }}
      - key: {{ $key }}
        path: {{ $option }}
      {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "sluice.storeMounts" -}}
{{- range $section, $given := dict "spool" .Values.objectStore.existingSecret "lake" .Values.objectStore.lakeSecret }}
{{- if $given.name }}
- name: {{ $section }}-keys
  mountPath: /etc/sluice/{{ $section }}
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{/* What a process needs that talks with PostgreSQL. */}}
{{- define "sluice.sourceEnv" -}}
- name: SLUICE_CONFIG
  value: /etc/sluice/sluice.yaml
{{- with .Values.source.existingSecret }}
{{- if and .name (eq .as "env") }}
- name: SLUICE_SOURCE__DSN
  valueFrom:
    secretKeyRef:
      name: {{ .name }}
      key: {{ .key }}
{{- else if .name }}
- name: SLUICE_SOURCE__DSN_FILE
  value: /etc/sluice/source/dsn
{{- end }}
{{- end }}
{{- with .Values.source.tls.existingSecret }}
{{- if .name }}
{{- if .ca }}
- name: PGSSLROOTCERT
  value: /etc/sluice/tls/ca.crt
{{- end }}
{{- if .cert }}
- name: PGSSLCERT
  value: /etc/sluice/tls/tls.crt
{{- end }}
{{- if .key }}
- name: PGSSLKEY
  value: /etc/sluice/tls/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- include "sluice.storeEnv" . }}
{{- end -}}

{{- define "sluice.sourceVolumes" -}}
{{ include "sluice.configVolume" . }}
{{- with .Values.source.existingSecret }}
{{- if and .name (eq .as "file") }}
- name: source
  secret:
    secretName: {{ .name }}
    # The group reads, which fsGroup makes ours.
    defaultMode: 0440
    items:
      - key: {{ .key }}
        path: dsn
{{- end }}
{{- end }}
{{- with .Values.source.tls.existingSecret }}
{{- if .name }}
- name: tls
  secret:
    secretName: {{ .name }}
    # libpq refuses a private key that more than owner and group can read.
    defaultMode: 0440
    items:
      {{- if .ca }}
      - key: {{ .ca }}
        path: ca.crt
      {{- end }}
      {{- if .cert }}
      - key: {{ .cert }}
        path: tls.crt
      {{- end }}
      {{- if .key }}
      - key: {{ .key }}
        path: tls.key
      {{- end }}
{{- end }}
{{- end }}
{{- include "sluice.storeVolumes" . }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.ingest.tmp.sizeLimit }}
{{- end -}}

{{- define "sluice.sourceMounts" -}}
{{- include "sluice.configMount" . | trim }}
{{- with .Values.source.existingSecret }}
{{- if and .name (eq .as "file") }}
- name: source
  mountPath: /etc/sluice/source
  readOnly: true
{{- end }}
{{- end }}
{{- with .Values.source.tls.existingSecret }}
{{- if .name }}
- name: tls
  mountPath: /etc/sluice/tls
  readOnly: true
{{- end }}
{{- end }}
{{- include "sluice.storeMounts" . }}
- name: tmp
  mountPath: /tmp
{{- end -}}

{{/* The applier's environment. It never meets PostgreSQL: a connection string that leads nowhere stands where the settings ask for one, and whatever
the configuration says of the source's password stays unused. */}}
{{- define "sluice.applierEnv" -}}
{{- if not .shared -}}
- name: SLUICE_CONFIG
  value: /etc/sluice/sluice.yaml
{{ end -}}
- name: SLUICE_SOURCE__DSN
  value: "postgresql://"
- name: SLUICE_TELEMETRY__APPLY_LISTEN
  value: {{ printf "%s:%v" .Values.metrics.listenHost .Values.metrics.applierPort | quote }}
- name: TMPDIR
  value: /var/lib/sluice/spill
- name: SPARK_LOCAL_DIRS
  value: /var/lib/sluice/spill
{{- if ne .Values.applier.mode "pod" }}
- name: SLUICE_APPLY__SPARK_MASTER
  value: {{ .Values.applier.kubernetes.master }}
{{- end }}
{{- include "sluice.storeEnv" . }}
{{- include "sluice.endpointEnv" . }}
{{- with .Values.applier.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sluice.applierMounts" -}}
{{- include "sluice.configMount" . | trim }}
- name: tmp
  mountPath: /tmp
- name: spill
  mountPath: /var/lib/sluice/spill
{{- include "sluice.endpointMounts" . }}
{{- include "sluice.storeMounts" . }}
{{- with .Values.applier.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sluice.applierVolumes" -}}
{{ include "sluice.configVolume" . }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.applier.tmp.sizeLimit }}
{{- if not .Values.applier.spill.persistentVolumeClaim.enabled }}
- name: spill
  emptyDir:
    sizeLimit: {{ .Values.applier.spill.sizeLimit }}
{{- end }}
{{- include "sluice.endpointVolumes" . }}
{{- include "sluice.storeVolumes" . }}
{{- with .Values.applier.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What guards the endpoints, token and certificate: where it is named, where it lies, where it is mounted. The kubelet keeps the files up to date. */}}
{{- define "sluice.endpointEnv" -}}
{{- if .Values.metrics.token.existingSecret.name }}
- name: SLUICE_TELEMETRY__TOKEN_PATH
  value: /etc/sluice/endpoint/token
{{- end }}
{{- with .Values.metrics.tls.existingSecret }}
{{- if .name }}
- name: SLUICE_TELEMETRY__TLS_CERT_PATH
  value: /etc/sluice/endpoint-tls/tls.crt
- name: SLUICE_TELEMETRY__TLS_KEY_PATH
  value: /etc/sluice/endpoint-tls/tls.key
{{- if .clientCa }}
- name: SLUICE_TELEMETRY__TLS_CLIENT_CA_PATH
  value: /etc/sluice/endpoint-tls/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "sluice.endpointVolumes" -}}
{{- with .Values.metrics.token.existingSecret }}
{{- if .name }}
- name: endpoint
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
    items:
      - key: {{ .key }}
        path: token
{{- end }}
{{- end }}
{{- with .Values.metrics.tls.existingSecret }}
{{- if .name }}
- name: endpoint-tls
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
    items:
      - key: {{ .cert }}
        path: tls.crt
      - key: {{ .key }}
        path: tls.key
      {{- if .clientCa }}
      - key: {{ .clientCa }}
        path: ca.crt
      {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "sluice.endpointMounts" -}}
{{- if .Values.metrics.token.existingSecret.name }}
- name: endpoint
  mountPath: /etc/sluice/endpoint
  readOnly: true
{{- end }}
{{- if .Values.metrics.tls.existingSecret.name }}
- name: endpoint-tls
  mountPath: /etc/sluice/endpoint-tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "sluice.endpointScheme" -}}
{{ ternary "https" "http" (ne .Values.metrics.tls.existingSecret.name "") }}
{{- end -}}

{{/* Takes (dict "root" $ "probes" the probes of a component). A kubelet verifies no certificate and has none. */}}
{{- define "sluice.probes" -}}
{{- range $kind, $path := dict "startup" "/startupz" "liveness" "/livez" "readiness" "/readyz" }}
{{ $kind }}Probe:
  httpGet:
    path: {{ $path }}
    port: metrics
    {{- if $.root.Values.metrics.tls.existingSecret.name }}
    scheme: HTTPS
    {{- end }}
  {{- toYaml (index $.probes $kind) | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where a pod may run. Takes the values of a component. */}}
{{- define "sluice.scheduling" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The metadata of a component's pods. Takes (dict "root" $ "component" "ingest" "values" .Values.ingest). A change of what a pod reads at its start
rolls it; of a ConfigMap that is not ours the content is not known here. */}}
{{- define "sluice.podMetadata" -}}
labels:
  {{- include "sluice.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := merge (dict) .values.podAnnotations .root.Values.commonAnnotations }}
{{- if not .root.Values.existingConfigMap.name }}
{{- $_ := set $annotations "checksum/config" (include "sluice.configs" .root | sha256sum) }}
{{- end }}
{{- if and (eq .component "applier") (eq .root.Values.applier.mode "kubernetes") }}
{{- $_ := set $annotations "checksum/spark" (include "sluice.sparkConfigMap" .root | sha256sum) }}
{{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What a test pod asks for. */}}
{{- define "sluice.testResources" -}}
requests:
  cpu: 50m
  memory: 128Mi
  ephemeral-storage: 16Mi
limits:
  memory: 256Mi
  ephemeral-storage: 128Mi
{{- end -}}
