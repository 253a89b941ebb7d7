{{/*
A release has one pipeline, or those of `pipelines`. A template for one pipeline is rendered by "sluice.each", and sees in .Values what is in force for its
pipeline, as if it were the only one of the release.
*/}}

{{/* Renders a named template for each pipeline of the release. Takes (dict "root" $ "template" name "component" "ingest", "applier" or "executor"): with one
applier for all, what belongs to it is rendered once. The template sees .Values, .component, .shared (whether it serves all) and, where it is for one of several, .pipeline. */}}
{{- define "sluice.each" -}}
{{- $root := .root }}
{{- $several := list }}
{{- $shared := and (ne .component "ingest") (ne (include "sluice.isShared" $root) "") }}
{{- if or $shared (empty $root.Values.pipelines) }}
{{- $several = append $several (dict "Values" $root.Values "shared" $shared) }}
{{- else }}
{{- range $name := keys $root.Values.pipelines | sortAlpha }}
{{- $one := dict "root" $root "pipeline" $name }}
{{- include "sluice.ownValues" $one }}
{{- $several = append $several (dict "Values" $one.Values "pipeline" $name "shared" false) }}
{{- end }}
{{- end }}
{{- range $several }}
{{- $_ := set . "component" $.component }}
---
{{ include $.template (merge . (dict "Release" $root.Release "Chart" $root.Chart "Template" $root.Template "Files" $root.Files "Capabilities" $root.Capabilities)) }}
{{- end }}
{{- end -}}

{{/* Puts into .Values what is in force for a pipeline: the release's values, and its own over them. Takes (dict "root" $ "pipeline" name). */}}
{{- define "sluice.ownValues" -}}
{{- $own := get .root.Values.pipelines .pipeline | default (dict) }}
{{- $values := omit (deepCopy .root.Values) "pipelines" }}
{{- include "sluice.override" (dict "into" $values "with" (deepCopy $own)) }}
{{- $_ := set $values.config "pipeline" .pipeline }}
{{- $_ := set . "Values" $values }}
{{- end -}}

{{/* Writes the values of .with over those of .into, in place. (Sprig's merge does not write false or 0 over another value.) */}}
{{- define "sluice.override" -}}
{{- range $key, $value := .with }}
{{- $before := get $.into $key }}
{{- if and (kindIs "map" $value) (kindIs "map" $before) }}
{{- include "sluice.override" (dict "into" $before "with" $value) }}
{{- else }}
{{- $_ := set $.into $key $value }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Not empty where one applier serves all pipelines. */}}
{{- define "sluice.isShared" -}}
{{- if and .Values.pipelines .Values.applier.shared -}}
shared
{{- end -}}
{{- end -}}

{{/* The pipelines that the shared applier serves, as a JSON list: those that are not paused. */}}
{{- define "sluice.served" -}}
{{- $served := list }}
{{- range $name := keys (default (dict) .Values.pipelines) | sortAlpha }}
{{- $one := dict "root" $ "pipeline" $name }}
{{- include "sluice.ownValues" $one }}
{{- if not $one.Values.paused }}
{{- $served = append $served $name }}
{{- end }}
{{- end }}
{{- toJson $served -}}
{{- end -}}

{{/* Refuses what cannot be rendered, by name. */}}
{{- define "sluice.checkPipelines" -}}
{{- if and .Values.existingConfigMap.name .Values.config (not .Values.pipelines) }}
{{- fail "config and existingConfigMap: the pods would read existingConfigMap alone, so `config` would do nothing: give one of them" }}
{{- end }}
{{- if .Values.pipelines }}
{{- if .Values.existingConfigMap.name }}
{{- fail "existingConfigMap has the configuration of one pipeline: give each of `pipelines` its own `config`" }}
{{- end }}
{{- if .Values.config.pipeline }}
{{- fail "config.pipeline: with `pipelines`, the name of a pipeline is its key there" }}
{{- end }}
{{- range $name, $own := .Values.pipelines }}
{{- $own = default (dict) $own }}
{{- with dig "config" "pipeline" "" $own }}
{{- fail (printf "pipelines.%s.config.pipeline: the name of a pipeline is its key, %s" $name $name) }}
{{- end }}
{{- $length := len (include "sluice.fullname" (merge (dict "pipeline" $name) $)) }}
{{- if gt $length 40 }}
{{- fail (printf "pipelines.%s: the names of its objects would begin with %d characters, of which 40 are possible: set fullnameOverride, or choose a shorter name" $name $length) }}
{{- end }}
{{- if $.Values.applier.shared }}
{{- range $key := list "applier" "objectStore" }}
{{- if hasKey $own $key }}
{{- fail (printf "pipelines.%s.%s: with applier.shared, one applier serves all pipelines: set %s for the release" $name $key $key) }}
{{- end }}
{{- end }}
{{- range $key := list "spark_master" "conf" }}
{{- if hasKey (dig "config" "apply" (dict) $own) $key }}
{{- fail (printf "pipelines.%s.config.apply.%s: with applier.shared, one Spark session serves all pipelines: set config.apply.%s for the release" $name $key $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $component, $account := dict "ingest" .Values.ingest.serviceAccount "applier" .Values.applier.serviceAccount "applier.executors" .Values.applier.executors.serviceAccount }}
{{- if and $account.create $account.name (or (eq $component "ingest") (not $.Values.applier.shared)) }}
{{- fail (printf "%s.serviceAccount.name: each of `pipelines` has its own account: give the name there, or set create: false for an account that exists" $component) }}
{{- end }}
{{- end }}
{{- if and .Values.applier.shared (eq .Values.applier.mode "sparkApplication") }}
{{- fail "applier.shared: the Spark operator runs one applier for each pipeline; choose applier.mode pod or kubernetes" }}
{{- end }}
{{- else if .Values.applier.shared }}
{{- fail "applier.shared needs `pipelines`: without them the release has one pipeline" }}
{{- end }}
{{- end -}}
