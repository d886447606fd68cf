{{- define "pods.security" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user }}
  runAsGroup: {{ .user }}
  fsGroup: {{ .user }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "containers.security" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    {{- with .add }}
    add: {{ toJson . }}
    {{- end }}
{{- end }}

{{- define "pods.placement" -}}
{{- with .values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "labels.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}

{{- define "model.env" -}}
{{- if not .Values.model.volume }}
- {name: HF_HOME, value: /cache/huggingface}
{{- end }}
{{- with .Values.model.hubTokenSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: token}}
{{- end }}
{{- end }}

{{- define "model.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /cache}
{{- if .Values.model.volume }}
- {name: model, mountPath: {{ .Values.model.mountPath }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "model.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- with .Values.model.volume }}
- name: model
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Ports of a pod are closed at SIGTERM: what still sends to it must have heard that it goes. */}}
{{- define "preStop.seconds" -}}10{{- end }}
{{- define "preStop" -}}
lifecycle:
  preStop:
    sleep: {seconds: {{ include "preStop.seconds" . }}}
{{- end }}

{{/* The longest stream: a request's whole time. */}}
{{- define "stream.seconds" -}}
{{- dig "timeouts" "request" 600 .Values.orchestrator.settings | float64 | ceil | int -}}
{{- end }}
