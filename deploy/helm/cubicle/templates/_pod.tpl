{{- define "cubicle.pod" -}}
{{- $name := include "cubicle.name" . -}}
metadata:
  labels:
    {{- include "cubicle.selector" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/settings: {{ include (print $.Template.BasePath "/settings.yaml") . | sha256sum }}
    checksum/secrets: {{ print .Values.secret .Values.secretSettings .Values.settingsFiles | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "cubicle.account" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add .Values.drainSeconds 25 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
  {{- with index $.Values $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  containers:
  - name: cubicle
    image: {{ include "cubicle.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [serve]
    envFrom:
    - configMapRef: {name: {{ $name }}-env}
    {{- if .Values.secretSettings }}
    - secretRef: {name: {{ $name }}-settings}
    {{- end }}
    {{- range .Values.existingSecretSettings }}
    - secretRef: {name: {{ . }}}
    {{- end }}
    env:
    - name: MCP_API_KEY
      valueFrom: {secretKeyRef: {name: {{ include "cubicle.secret" . }}, key: api-key}}
    - name: METRICS_TOKEN
      valueFrom: {secretKeyRef: {name: {{ include "cubicle.secret" . }}, key: metrics-token, optional: true}}
    - name: HOME
      value: /tmp
    {{- if include "cubicle.several" . }}
    - name: MEMBER_HOST
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
    {{- end }}
    ports:
    - {name: http, containerPort: 8081}
    {{- if include "cubicle.several" . }}
    - {name: members, containerPort: 8082}
    {{- end }}
    # The cluster needs a moment to send new connections elsewhere; the service stops to listen at SIGTERM.
    lifecycle:
      preStop: {exec: {command: [sleep, "5"]}}
    # The first start proves the isolation with two pods of its own, which may take minutes.
    startupProbe:
      httpGet: {path: /health, port: http}
      periodSeconds: 2
      timeoutSeconds: 5
      failureThreshold: 450
    readinessProbe:
      httpGet: {path: /health, port: http}
      periodSeconds: 3
      timeoutSeconds: 5
      failureThreshold: 2
    livenessProbe:
      httpGet: {path: /health, port: http}
      periodSeconds: 20
      timeoutSeconds: 10
      # While it drains, the service answers 503: that is no reason to kill it.
      failureThreshold: {{ add 6 (div .Values.drainSeconds 20) }}
    resources:
      {{- toYaml .Values.resources | nindent 6 }}
    securityContext:
      {{- toYaml .Values.securityContext | nindent 6 }}
    volumeMounts:
    - {name: data, mountPath: /var/lib/cubicle}
    - {name: tmp, mountPath: /tmp}
    - {name: account, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
    - {name: secret, mountPath: /etc/cubicle/secret, readOnly: true}
    {{- if .Values.settingsFiles }}
    - {name: files, mountPath: /etc/cubicle/files, readOnly: true}
    {{- end }}
    {{- if .Values.sandboxes.podTemplate }}
    - {name: pod, mountPath: /etc/cubicle/pod.yaml, subPath: pod.yaml, readOnly: true}
    {{- end }}
  volumes:
  - name: data
    {{- if .Values.persistence.enabled }}
    persistentVolumeClaim: {claimName: {{ default (printf "%s-data" $name) .Values.persistence.existingClaim }}}
    {{- else }}
    emptyDir: {}
    {{- end }}
  - name: tmp
    emptyDir: {}
  # As the cluster would mount it by itself, but for the service alone and renewed each hour.
  - name: account
    projected:
      sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
  - name: secret
    secret:
      secretName: {{ include "cubicle.secret" . }}
      defaultMode: 0440
      items:
      - {key: guest-key.pem, path: guest-key.pem}
      {{- if include "cubicle.several" . }}
      - {key: member-secret, path: member-secret}
      {{- end }}
  {{- if .Values.settingsFiles }}
  - name: files
    secret: {secretName: {{ $name }}-files, defaultMode: 0440}
  {{- end }}
  {{- if .Values.sandboxes.podTemplate }}
  - name: pod
    configMap: {name: {{ $name }}-pod}
  {{- end }}
{{- end -}}
