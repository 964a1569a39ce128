{{- define "mfsdp.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "mfsdp.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "mfsdp.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "mfsdp.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "mfsdp.selector" -}}
app.kubernetes.io/name: {{ include "mfsdp.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mfsdp.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "mfsdp.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "mfsdp.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "mfsdp.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "mfsdp.image" -}}
{{- with .Values.image -}}
{{- if .ref -}}
{{- .ref -}}
{{- else if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the operator does inside a namespace, line by line. No secrets, no nodes, no wildcards. */}}
{{- define "mfsdp.rules" -}}
# Framework: kopf lists and watches jobs. Operator: reads one anew after a conflict, and lists all now
# and then.
- apiGroups: [training.mfsdp.dev]
  resources: [megatronfsdpjobs]
  verbs: [get, list, watch]
# Operator: writes the status of a job, and never anything else of it.
- apiGroups: [training.mfsdp.dev]
  resources: [megatronfsdpjobs/status]
  verbs: [update]
# Operator: children block the deletion of their owner (blockOwnerDeletion). Asked for only by the
# admission plugin OwnerReferencesPermissionEnforcement, as on OpenShift.
- apiGroups: [training.mfsdp.dev]
  resources: [megatronfsdpjobs/finalizers]
  verbs: [update]
# Operator: makes the pods of a gang, follows them, and ends them. It never changes one.
- apiGroups: [""]
  resources: [pods]
  verbs: [create, delete, get, list, watch]
# Operator: one headless service a job. It goes with its job, so there is no delete.
- apiGroups: [""]
  resources: [services]
  verbs: [create, get, list, watch]
# Operator: one config map a job, by its name. Never lists them: others keep their own in there.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, get]
# Operator: tells in Events what it did.
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
