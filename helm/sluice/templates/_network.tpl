{{/* Rules of NetworkPolicies. */}}

{{/* One rule for what may go out. Takes (dict "ports" list "to" list). */}}
{{- define "sluice.egress" -}}
- ports:
    {{- range .ports }}
    - port: {{ . }}
    {{- end }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Driver and executors talk with each other at ports that Spark chooses. Takes (dict "root" $ "direction" "from" or "to"). */}}
{{- define "sluice.sparkPeers" -}}
- {{ .direction }}:
    - podSelector:
        matchLabels:
          {{- include "sluice.selectorLabels" .root | nindent 10 }}
        matchExpressions:
          - key: app.kubernetes.io/component
            operator: In
            values:
              - applier
              - executor
{{- end -}}
