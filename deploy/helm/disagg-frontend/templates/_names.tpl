{{- define "names.part" -}}
{{- printf "%s-%s" (.root.Release.Name | trunc 40 | trimSuffix "-") .part -}}
{{- end }}

{{- define "labels.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "labels.all" -}}
{{ include "labels.selector" . }}
app.kubernetes.io/part-of: {{ .root.Chart.Name }}
{{- if and .root.Values.engines.generation (has .part (list "encode" "prefill" "decode")) }}
disagg-frontend/generation: {{ .root.Values.engines.generation | quote }}
{{- end }}
{{- end }}

{{- define "labels.engines" -}}
matchLabels:
  app.kubernetes.io/name: {{ .root.Chart.Name }}
  app.kubernetes.io/instance: {{ .root.Release.Name }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: [{{ join ", " .parts }}]}
{{- end }}
