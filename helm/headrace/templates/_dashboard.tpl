{{/* Grafana's JSON of one entry of files/dashboards.yaml: stats six to a row on top, graphs two to a row below. */}}
{{- define "headrace.dashboard" -}}
{{- $source := dict "type" "prometheus" "uid" "${datasource}" }}
{{- $by := `namespace="$namespace",cluster="$cluster"` }}
{{- $panels := list }}
{{- $stats := 0 }}{{- $graphs := 0 }}
{{- range .panels }}
  {{- $targets := list }}
  {{- range $legend, $expr := .queries }}
    {{- $targets = append $targets (dict "refId" (printf "Q%d" (len $targets)) "datasource" $source
        "expr" ($expr | trim | replace "$by" $by) "legendFormat" (default "__auto" $legend)) }}
  {{- end }}
  {{- $colours := list (dict "color" "green" "value" nil) }}
  {{- with .bad }}{{- $colours = append $colours (dict "color" "red" "value" .) }}{{- end }}
  {{- $place := dict }}
  {{- if eq (default "timeseries" .kind) "stat" }}
    {{- $place = dict "w" 4 "h" 4 "x" (mul 4 (mod $stats 6)) "y" (mul 4 (div $stats 6)) }}
    {{- $stats = add1 $stats }}
  {{- else }}
    {{- $place = dict "w" 12 "h" 8 "x" (mul 12 (mod $graphs 2)) "y" (add 8 (mul 8 (div $graphs 2))) }}
    {{- $graphs = add1 $graphs }}
  {{- end }}
  {{- $panels = append $panels (dict "id" (add1 (len $panels)) "title" .title "type" (default "timeseries" .kind)
      "datasource" $source "gridPos" $place "targets" $targets
      "fieldConfig" (dict "defaults" (dict "unit" .unit "min" 0
        "thresholds" (dict "mode" "absolute" "steps" $colours)) "overrides" list)) }}
{{- end }}
{{- $of := "kafka_server_replicamanager_partitioncount" }}
{{- $variables := list
    (dict "name" "datasource" "type" "datasource" "query" "prometheus")
    (dict "name" "namespace" "type" "query" "datasource" $source "refresh" 2
      "query" (printf "label_values(%s, namespace)" $of))
    (dict "name" "cluster" "type" "query" "datasource" $source "refresh" 2
      "query" (printf "label_values(%s{namespace=\"$namespace\"}, cluster)" $of)) }}
{{- dict "uid" (printf "headrace-%s" .name) "title" .title "tags" (list "headrace") "schemaVersion" 39 "editable" true
    "refresh" "30s" "time" (dict "from" "now-1h" "to" "now") "templating" (dict "list" $variables) "panels" $panels
    | toJson }}
{{- end }}
