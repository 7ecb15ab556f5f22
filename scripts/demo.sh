#!/usr/bin/env bash
# The quickstart, for eyes: starts a cluster with a broker and the operator in it, applies examples/quickstart.yaml, shows
# how it goes, prints the results, and takes everything away again, also on ctrl-C. A cluster that is kept running by hand
# is used instead and stays. Exit status: 0 Passed, 1 Failed, 3 Inconclusive, 130 interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=e2e/cluster/cluster
test=quickstart
started=$SECONDS
step() { printf '\033[1m==>\033[0m %s\n' "$*"; }

# shellcheck disable=SC2317 # called by the traps
finish() {
  local status=$1
  trap - EXIT INT TERM
  [ ! -t 1 ] || printf '\r\033[K'
  if [ -n "${supervisor:-}" ]; then
    step "Taking the cluster down"
    eval "exec ${CLUSTER[1]}>&-" || true # it ends with its standard input
    wait "$supervisor" 2>/dev/null || true
  elif [ -n "${applied:-}" ]; then
    "$cluster" kubectl delete mqttloadtest "$test" --ignore-not-found >/dev/null || true
  fi
  exit "$status"
}
trap 'finish $?' EXIT
trap 'finish 130' INT TERM

if "$cluster" kubeconfig >/dev/null 2>&1; then
  step "Using the cluster that is running already"
else
  step "Starting a Kubernetes cluster (about 10 seconds)"
  coproc CLUSTER { trap '' INT && exec "$cluster" run; }
  supervisor=$CLUSTER_PID
  read -r _ <&"${CLUSTER[0]}" || { echo "demo: the cluster did not start; see above" >&2 && exit 1; }
fi
step "Starting mosquitto in a pod, and installing the operator's chart"
"$cluster" mosquitto
"$cluster" install

step "kubectl apply -f examples/$test.yaml"
applied=yes
"$cluster" kubectl delete mqttloadtest "$test" --ignore-not-found >/dev/null
"$cluster" kubectl apply -f "examples/$test.yaml" >/dev/null

# PHASE, CLIENTS, OF, SENT/S, RECEIVED/S, ACK P99, LOST, FINISHED
progress='{{with .status}}{{or .phase "Pending"}} {{with .clients}}{{or .connected 0}} {{or .desired 0}}{{else}}0 0{{end}} {{with .rates}}{{or .sent "-"}} {{or .received "-"}}{{else}}- -{{end}} {{with .latency}}{{with .publishAck}}{{or .p99 "-"}}{{else}}-{{end}}{{else}}-{{end}} {{with .messages}}{{or .lost "-"}}{{else}}-{{end}} {{range .conditions}}{{if eq .type "Finished"}}{{.status}}{{end}}{{end}}{{end}}'
last=
applied_at=$SECONDS
while :; do
  line=$("$cluster" kubectl get mqttloadtest "$test" -o go-template="$progress")
  read -r phase clients of sent received p99 lost finished <<<"${line:-Pending 0 0 - - - - False}"
  text=$(printf '%4s s  %-10s  clients %s/%s  sent %s/s  received %s/s  ack p99 %s  lost %s' \
    "$((SECONDS - applied_at))" "$phase" "$clients" "$of" "$sent" "$received" "$p99" "$lost")
  if [ -t 1 ]; then
    printf '\r\033[K%s' "$text"
  elif [ "$phase" != "$last" ]; then
    echo "$text"
  fi
  last=$phase
  [ "$finished" != True ] || break
  [ $((SECONDS - applied_at)) -lt 300 ] || { echo && echo "demo: no verdict after 5 minutes" >&2 && exit 1; }
  sleep 1
done
[ ! -t 1 ] || printf '\r\033[K'

"$cluster" kubectl get mqttloadtest "$test" -o go-template-file=scripts/results.gotemplate
verdict=$("$cluster" kubectl get mqttloadtest "$test" -o jsonpath='{.status.verdict}')
echo "From nothing to the verdict: $((SECONDS - started)) s"
case $verdict in Passed) exit 0 ;; Inconclusive) exit 3 ;; *) exit 1 ;; esac
