{{/* The name of the application in labels. */}}
{{- define "sluice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The prefix of the names of a pipeline's objects. Short enough that "-applier-0" and what Spark adds to a pod's name still fit. */}}
{{- define "sluice.fullname" -}}
{{- $release := include "sluice.releaseName" . -}}
{{- if hasKey . "pipeline" -}}
{{- printf "%s-%s" $release (replace "_" "-" .pipeline) -}}
{{- else -}}
{{- $release -}}
{{- end -}}
{{- end -}}

{{/* The prefix of the names of all objects of the release. */}}
{{- define "sluice.releaseName" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that choose the pods of the release, or of one of its pipelines; they never change between versions. */}}
{{- define "sluice.selectorLabels" -}}
app.kubernetes.io/name: {{ include "sluice.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- with .pipeline }}
sluice/pipeline: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "sluice.labels" -}}
{{ include "sluice.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: sluice
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The annotations of every object, or nothing. */}}
{{- define "sluice.annotations" -}}
{{- with .Values.commonAnnotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The whole name of an image. Takes (dict "root" $ "image" .Values.ingest.image). */}}
{{- define "sluice.image" -}}
{{- $repository := .image.repository -}}
{{- with .image.registry -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The name of a component's ServiceAccount. Takes (dict "root" $ "account" .Values.ingest.serviceAccount "component" "ingest"). */}}
{{- define "sluice.serviceAccountName" -}}
{{- if .account.create -}}
{{- default (printf "%s-%s" (include "sluice.fullname" .root) .component) .account.name -}}
{{- else -}}
{{- default "default" .account.name -}}
{{- end -}}
{{- end -}}

{{/* Bytes of a size as the configuration has it, such as 256MiB, or as the JVM has it, such as 2g. What cannot be read here (a variable) is the default. Takes (dict "size" value "default"
bytes). */}}
{{- define "sluice.bytes" -}}
{{- $units := dict "" 1 "b" 1 "kib" 1024 "mib" 1048576 "gib" 1073741824 "tib" 1099511627776 "kb" 1000 "mb" 1000000 "gb" 1000000000 "tb" 1000000000000 "k" 1024 "m" 1048576 "g" 1073741824 "t" 1099511627776 -}}
{{- $text := ternary (printf "%.0f" (float64 (default 0 .size))) (toString .size | trim) (or (kindIs "float64" .size) (kindIs "int64" .size) (kindIs "int" .size)) -}}
{{- if regexMatch "^[0-9]+([.][0-9]+)? *([kKmMgGtT][iI]?)?[bB]?$" $text -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $units (regexFind "[a-zA-Z]*$" $text | lower)) | int64 -}}
{{- else -}}
{{- .default | int64 -}}
{{- end -}}
{{- end -}}

{{/* GiB that the applier's container needs by `config.apply`: the sum of docs/operations/sizing.md, which sluice.settings.memory has too; a test compares. One
applier for all pipelines has the heap, the windows and the key cache of those that ask for most. Takes (dict "root" $ "heap" bytes), with heap 0 for that of the
configuration. */}}
{{- define "sluice.applierGibibytes" -}}
{{- $asked := list (default (dict) .root.Values.config.apply) -}}
{{- $workers := include "sluice.bytes" (dict "size" (first $asked).workers "default" 2) | int64 -}}
{{- range $name := ternary (fromJsonArray (include "sluice.served" .root)) list .root.shared -}}
{{- $one := dict "root" $.root "pipeline" $name -}}
{{- include "sluice.ownValues" $one -}}
{{- $asked = append $asked (default (dict) $one.Values.config.apply) -}}
{{- end -}}
{{- $heap := .heap | int64 -}}
{{- $memory := 0 -}}{{- $window := 0 -}}{{- $cache := 0 -}}
{{- range $apply := $asked -}}
{{- if eq (int64 $.heap) 0 -}}
{{- $heap = max $heap (include "sluice.bytes" (dict "size" $apply.driver_memory "default" 2147483648) | int64) -}}
{{- end -}}
{{- $memory = max $memory (include "sluice.bytes" (dict "size" $apply.max_memory "default" 268435456) | int64) -}}
{{- $window = max $window (include "sluice.bytes" (dict "size" $apply.max_window "default" 134217728) | int64) -}}
{{- $cache = max $cache (include "sluice.bytes" (dict "size" $apply.key_cache "default" 268435456) | int64) -}}
{{- end -}}
{{- $jvm := add $heap 536870912 (div $heap 16) -}}
{{- $python := add 402653184 (mul $workers (add (mul 5 $memory) $window)) $cache -}}
{{- div (add $jvm $python 1073741823) 1073741824 -}}
{{- end -}}

{{/* The applier's resources: what values say; memory by the sum where they say nothing, and one of request and limit as the other. */}}
{{- define "sluice.applierResources" -}}
{{- $resources := deepCopy .Values.applier.resources -}}
{{- $requested := get (default (dict) $resources.requests) "memory" -}}
{{- $limit := get (default (dict) $resources.limits) "memory" -}}
{{- $memory := $limit | default $requested | default (printf "%sGi" (include "sluice.applierGibibytes" (dict "root" . "heap" 0))) -}}
{{- range $kind := list "requests" "limits" -}}
{{- $of := default (dict) (get $resources $kind) -}}
{{- if not (hasKey $of "memory") -}}
{{- $_ := set $of "memory" $memory -}}
{{- end -}}
{{- $_ := set $resources $kind $of -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Seconds of a duration as the configuration has it, such as 20s; what cannot be read here (a variable) is 0. */}}
{{- define "sluice.seconds" -}}
{{- $units := dict "" 1 "ms" 0.001 "s" 1 "m" 60 "h" 3600 "d" 86400 -}}
{{- $text := toString . | trim -}}
{{- if regexMatch "^[0-9]+([.][0-9]+)? *(ms|s|m|h|d)?$" $text -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $units (regexFind "[a-z]*$" $text)) -}}
{{- else -}}
0
{{- end -}}
{{- end -}}

{{/* The grace period of a component, which has to be longer than the stop that it is for. Takes (dict "root" $ "component" "ingest" "values" .Values.ingest). */}}
{{- define "sluice.gracePeriod" -}}
{{- $given := .values.terminationGracePeriodSeconds -}}
{{- $asked := list .root.Values.config -}}
{{- range $name := ternary (fromJsonArray (include "sluice.served" .root)) list .root.shared -}}
{{- $one := dict "root" $.root "pipeline" $name -}}
{{- include "sluice.ownValues" $one -}}
{{- $asked = append $asked $one.Values.config -}}
{{- end -}}
{{- range $config := ternary list $asked (ne .root.Values.existingConfigMap.name "") -}}
{{- $stop := default "20s" $config.stop_timeout -}}
{{- if le (float64 $given) (include "sluice.seconds" $stop | float64) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds is %v, and config.stop_timeout is %v: a stop would be killed before it is over. Make the grace period ten seconds longer than the stop" $.component $given $stop) -}}
{{- end -}}
{{- end -}}
{{- $given -}}
{{- end -}}
