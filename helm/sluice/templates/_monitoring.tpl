{{/* What both monitors choose, and how they scrape it. */}}

{{- define "sluice.monitored" -}}
matchLabels:
  {{- include "sluice.selectorLabels" . | nindent 2 }}
matchExpressions:
  - key: app.kubernetes.io/component
    operator: In
    values:
      - ingest
      - applier
{{- end -}}

{{/* Takes the values of a monitor. */}}
{{- define "sluice.endpoint" -}}
path: /metrics
interval: {{ .interval }}
scrapeTimeout: {{ .scrapeTimeout }}
{{- with .relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
