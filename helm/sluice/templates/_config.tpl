{{/* The configuration of a pipeline. */}}
{{- define "sluice.configMap" -}}
{{- if not .Values.existingConfigMap.name }}
{{- $config := .Values.config }}
{{- $advice := "is missing: give `config` as docs/configuration.md describes it, or `existingConfigMap.name`" }}
{{- $_ := required (printf "config.pipeline %s" $advice) $config.pipeline }}
{{- $where := "" }}
{{- with .pipeline }}
{{- $where = printf "pipelines.%s." . }}
{{- $advice = "is missing: give it there, or in `config` for all pipelines; docs/configuration.md describes it" }}
{{- end }}
{{- $_ := required (printf "%sconfig.spool.uri %s" $where $advice) (dig "spool" "uri" "" $config) }}
{{- $_ := required (printf "%sconfig.lake.uri %s" $where $advice) (dig "lake" "uri" "" $config) }}
{{- if not (or .Values.source.existingSecret.name (dig "source" "dsn" "" $config)) }}
{{- fail (printf "no connection string: give `%ssource.existingSecret.name`, or `%sconfig.source.dsn` without a password" $where $where) }}
{{- end }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "sluice.configMapName" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "sluice.labels" . | nindent 4 }}
  {{- with include "sluice.annotations" . }}{{ . | nindent 2 }}{{ end }}
data:
  sluice.yaml: |
    {{- toYaml $config | nindent 4 }}
{{- end }}
{{- end -}}
