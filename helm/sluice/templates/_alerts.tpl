{{/*
Which pipelines the release's rules watch: its own. Where the chart does not know the name of its only one (an existing ConfigMap, a variable), all of them.
*/}}
{{- define "sluice.pipelineMatcher" -}}
{{- if .Values.pipelines -}}
pipeline=~{{ keys .Values.pipelines | sortAlpha | join "|" | quote }}
{{- else -}}
{{- with include "sluice.knownPipeline" . -}}
pipeline={{ . | quote }}
{{- else -}}
pipeline!=""
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The name of a pipeline; empty where the chart does not know it.
*/}}
{{- define "sluice.knownPipeline" -}}
{{- $name := default "" .Values.config.pipeline | toString -}}
{{- if not (or (empty $name) .Values.existingConfigMap.name (contains "$" $name)) -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/*
What the release knows and no scrape can tell: which pipelines exist, and which of their parts are stopped on purpose. The alerts read it.
*/}}
{{- define "sluice.presence" -}}
{{- if .Values.pipelines -}}
{{- range $name := keys .Values.pipelines | sortAlpha -}}
{{- $one := dict "root" $ "pipeline" $name -}}
{{- include "sluice.ownValues" $one -}}
{{- include "sluice.presenceOfOne" $one | nindent 0 -}}
{{- end -}}
{{- else -}}
{{- include "sluice.presenceOfOne" . -}}
{{- end -}}
{{- end -}}

{{- define "sluice.presenceOfOne" -}}
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
