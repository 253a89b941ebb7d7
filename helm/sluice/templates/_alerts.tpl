{{/*
Which pipeline the release's rules watch: its own. Where the chart does not know its name (an existing ConfigMap, a variable), all of them.
*/}}
{{- define "sluice.pipelineMatcher" -}}
{{- $name := default "" .Values.config.pipeline | toString -}}
{{- if or (empty $name) .Values.existingConfigMap.name (contains "$" $name) -}}
pipeline!=""
{{- else -}}
pipeline={{ $name | quote }}
{{- end -}}
{{- end -}}
