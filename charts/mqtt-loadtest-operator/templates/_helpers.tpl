{{/* The chart's name, or what overrides it. */}}
{{- define "operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* The name of the objects of this release. */}}
{{- define "operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains .Release.Name (include "operator.name" .) }}
{{- include "operator.name" . }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "operator.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "operator.keySecret" -}}
{{- default (printf "%s-key" (include "operator.fullname" .)) .Values.operatorKey.existingSecret }}
{{- end }}

{{- define "operator.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "operator.workerImage" -}}
{{ .Values.worker.image.repository }}:{{ .Values.worker.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "operator.labels" -}}
{{ include "operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What the restricted Pod Security Standard asks of every container. */}}
{{- define "operator.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What the operator may do where the tests are. Of Secrets it can create, and never read, its runs' tokens. */}}
{{- define "operator.testRules" -}}
- apiGroups: [mqttloadtest.dev]
  resources: [mqttloadtests]
  verbs: [get, list, watch]
- apiGroups: [mqttloadtest.dev]
  resources: [mqttloadtests/status]
  verbs: [get, patch, update]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
# A refused quota or a missing Secret shows in no status, only in an Event of the Job or the pod.
- apiGroups: [""]
  resources: [events]
  verbs: [list]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, delete]
{{- end }}
