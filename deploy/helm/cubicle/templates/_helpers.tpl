{{- define "cubicle.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "cubicle.labels" -}}
{{ include "cubicle.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "cubicle.selector" -}}
app.kubernetes.io/name: cubicle
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "cubicle.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "cubicle.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: the account to use, as serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "cubicle.sandboxes" -}}
{{- default .Release.Namespace .Values.sandboxes.namespace -}}
{{- end -}}

{{- define "cubicle.secret" -}}
{{- default (include "cubicle.name" .) .Values.secret.existing -}}
{{- end -}}

{{- define "cubicle.files" -}}
{{- default (printf "%s-files" (include "cubicle.name" .)) .Values.sandboxes.files.existingClaim -}}
{{- end -}}

{{- define "cubicle.image" -}}
{{- $repository := required "image.repository: the image of the service" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "cubicle.several" -}}
{{- if or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled }}yes{{ end -}}
{{- end -}}

{{/* A value of a setting as text. Helm reads numbers as floats, and would write a million as 1e+06. */}}
{{- define "cubicle.text" -}}
{{- if kindIs "float64" . -}}
{{- ternary (printf "%.0f" .) (toString .) (eq . (floor .)) -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* What an older cluster calls by another version. */}}
{{- define "cubicle.budgetVersion" -}}
{{- ternary "policy/v1" "policy/v1beta1" (semverCompare ">=1.21.0-0" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- define "cubicle.scalerVersion" -}}
{{- ternary "autoscaling/v2" "autoscaling/v2beta2" (semverCompare ">=1.23.0-0" .Capabilities.KubeVersion.Version) -}}
{{- end -}}

{{/* The settings that the chart makes itself: name and value, one a line. */}}
{{- define "cubicle.settings" -}}
DRIVER: kubernetes
{{- if not (hasKey .Values.settings "HOST") }}
HOST: 0.0.0.0
{{- end }}
PORT: "8081"
DATA_DIR: /var/lib/cubicle/data
IMAGE_DIR: /var/lib/cubicle/images
DRAIN_SECONDS: {{ .Values.drainSeconds | quote }}
KUBERNETES_NAMESPACE: {{ include "cubicle.sandboxes" . }}
KUBERNETES_INSTANCE: {{ .Values.sandboxes.instance }}
KUBERNETES_IMAGE: {{ required "sandboxes.image: the image of sandboxes" .Values.sandboxes.image | quote }}
KUBERNETES_ISOLATION: {{ .Values.sandboxes.isolation }}
KUBERNETES_FILES: {{ .Values.sandboxes.files.mode }}
{{- if eq .Values.sandboxes.files.mode "shared" }}
KUBERNETES_CLAIM: {{ include "cubicle.files" . }}
{{- else if .Values.sandboxes.files.storageClass }}
KUBERNETES_STORAGE_CLASS: {{ .Values.sandboxes.files.storageClass }}
{{- end }}
KUBERNETES_KEY_FILE: /etc/cubicle/secret/guest-key.pem
{{- if .Values.sandboxes.podTemplate }}
KUBERNETES_POD_TEMPLATE: /etc/cubicle/pod.yaml
{{- end }}
{{- if include "cubicle.several" . }}
REPLICAS: {{ ternary .Values.autoscaling.maxReplicas .Values.replicas .Values.autoscaling.enabled | quote }}
MEMBER_PORT: "8082"
MEMBER_SECRET_FILE: /etc/cubicle/secret/member-secret
{{- end }}
POOL_SIZE: {{ .Values.sandboxes.pool.size | quote }}
SANDBOX_MEMORY_MB: {{ include "cubicle.text" .Values.sandboxes.limits.memoryMb | quote }}
SANDBOX_CPUS: {{ include "cubicle.text" .Values.sandboxes.limits.cpus | quote }}
SANDBOX_DISK_MB: {{ include "cubicle.text" .Values.sandboxes.limits.diskMb | quote }}
{{- if .Values.ingress.enabled }}
{{- $host := required "ingress.host: the name of the service" .Values.ingress.host }}
{{- if not (hasKey .Values.settings "PUBLIC_BASE_URL") }}
PUBLIC_BASE_URL: {{ printf "%s://%s" (ternary "https" "http" (ne .Values.ingress.tlsSecret "")) $host }}
{{- end }}
{{- with .Values.ingress.previewDomain }}
PREVIEW_DOMAIN: {{ . }}
{{- end }}
{{- end }}
{{- with .Values.apiServer.host }}
KUBERNETES_SERVICE_HOST: {{ . | quote }}
{{- end }}
{{- with .Values.apiServer.port }}
KUBERNETES_SERVICE_PORT: {{ . | quote }}
{{- end }}
{{- range $name, $content := .Values.settingsFiles }}
{{ $name }}: /etc/cubicle/files/{{ $name }}
{{- end }}
{{- end -}}
