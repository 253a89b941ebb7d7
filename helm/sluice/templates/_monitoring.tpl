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

{{/* Takes (dict "root" $ "monitor" the values of a monitor). */}}
{{- define "sluice.endpoint" -}}
path: /metrics
{{- with .root.Values.metrics.token.existingSecret }}
{{- if .name }}
authorization:
  type: Bearer
  credentials:
    name: {{ .name }}
    key: {{ .key }}
{{- end }}
{{- end }}
{{- with .root.Values.metrics.tls }}
{{- if .existingSecret.name }}
{{- if and .existingSecret.clientCa (not .monitorSecret.name) }}
{{- fail "metrics.tls.existingSecret.clientCa asks clients for a certificate: name the Secret of the one that Prometheus presents in metrics.tls.monitorSecret" }}
{{- end }}
scheme: https
tlsConfig:
  # Pods are scraped at their addresses, which no certificate has.
  serverName: {{ default (include "sluice.fullname" $.root) .serverName }}
  {{- with .monitorSecret }}
  {{- if .name }}
  {{- $name := .name }}
  {{- with .ca }}
  ca:
    secret:
      name: {{ $name }}
      key: {{ . }}
  {{- end }}
  {{- with .cert }}
  cert:
    secret:
      name: {{ $name }}
      key: {{ . }}
  {{- end }}
  {{- with .key }}
  keySecret:
    name: {{ $name }}
    key: {{ . }}
  {{- end }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end }}
{{- with .monitor }}
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
{{- end }}
{{- end -}}
