{{- define "headrace.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 54 | trimSuffix "-" }}
{{- else if contains (include "headrace.name" .) .Release.Name -}}
{{ .Release.Name | trunc 54 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name (include "headrace.name" .) | trunc 54 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "headrace.operator" -}}
{{ include "headrace.fullname" . }}-operator
{{- end }}

{{- define "headrace.serviceAccount" -}}
{{- if .Values.serviceAccount.name -}}
{{ .Values.serviceAccount.name }}
{{- else -}}
{{ include "headrace.operator" . }}
{{- end }}
{{- end }}

{{- define "headrace.cluster" -}}
{{ default .Release.Name .Values.cluster.name }}
{{- end }}

{{/* Namespaced and cluster-wide objects share one name; the latter may not collide between releases. */}}
{{- define "headrace.clusterWide" -}}
{{ printf "%s-%s" .Release.Namespace (include "headrace.operator" .) }}
{{- end }}

{{- define "headrace.operatorImage" -}}
{{ .Values.operator.image.repository }}:{{ default .Chart.AppVersion .Values.operator.image.tag }}
{{- end }}

{{- define "headrace.servicesImage" -}}
{{ .Values.services.image.repository }}:{{ default .Chart.AppVersion .Values.services.image.tag }}
{{- end }}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: headrace-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: headrace
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What every container of ours may do: nothing it does not need. */}}
{{- define "headrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "headrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
seccompProfile: {type: RuntimeDefault}
{{- end }}
