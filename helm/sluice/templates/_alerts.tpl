{{/*
Which pipeline the release's rules watch: its own. Where the chart does not know its name (an existing ConfigMap, a variable), all of them.
*/}}
{{- define "sluice.pipelineMatcher" -}}
{{- with include "sluice.knownPipeline" . -}}
pipeline={{ . | quote }}
{{- else -}}
pipeline!=""
{{- end -}}
{{- end -}}

{{/*
The name of the release's pipeline; empty where the chart does not know it.
*/}}
{{- define "sluice.knownPipeline" -}}
{{- $name := default "" .Values.config.pipeline | toString -}}
{{- if not (or (empty $name) .Values.existingConfigMap.name (contains "$" $name)) -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/*
What the release knows and no scrape can tell: that its pipeline exists, and which of its parts are stopped on purpose. The alerts read it.
*/}}
{{- define "sluice.presence" -}}
{{- with include "sluice.knownPipeline" . -}}
- record: pipeline:sluice_declared
  expr: vector(1)
  labels:
    pipeline: {{ . | quote }}
{{- if $.Values.paused }}
- record: pipeline:sluice_paused
  expr: vector(1)
  labels:
    pipeline: {{ . | quote }}
    part: ingest
{{- end }}
{{- if or $.Values.paused $.Values.applier.paused }}
- record: pipeline:sluice_paused
  expr: vector(1)
  labels:
    pipeline: {{ . | quote }}
    part: applier
{{- end }}
{{- end -}}
{{- end -}}
