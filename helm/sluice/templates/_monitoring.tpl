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

{{/* Takes the values of a monitor, and as "token" those of the endpoints' token. */}}
{{- define "sluice.endpoint" -}}
path: /metrics
{{- with .token.existingSecret }}
{{- if .name }}
authorization:
  type: Bearer
  credentials:
    name: {{ .name }}
    key: {{ .key }}
{{- end }}
{{- end }}
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
