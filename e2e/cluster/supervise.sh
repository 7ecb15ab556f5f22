#!/usr/bin/env bash
# The life of one cluster: takes the lock, cleans up after a cluster that was killed, starts everything, waits for
# ready nodes, and takes everything down when its time has come: on SIGTERM, and in mode `tied` also when its standard
# input ends, as it does when the process that holds the other end is gone, however it went. Arguments: MODE NODES, where
# MODE is `kept`, `tied`, or `sweep` (only the cleaning up).
# A SIGKILL takes all processes along (each dies with its parent); network and cgroups are cleaned at the next start.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$HERE/network.sh"
. "$HERE/cgroups.sh"
. "$HERE/certificates.sh"
MODE=$1 NODES=$2
unset E2E_KUBECONFIG
export STATE CACHE
exec 3<&0

# In a mount and PID namespace of its own, whose first process dies with the one outside, and that with this script.
apart() {
  local name=$1
  shift
  setsid setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc "$@" </dev/null >"$STATE/$name.log" 2>&1 3<&- 9>&- &
  echo $! >"$STATE/$name.pid"
  disown # or bash reports its end as if it were an accident
}

# The first processes of these namespaces take all others with them, and are gone only when those are.
stop_processes() {
  local file pid
  for file in "$STATE"/*.pid; do
    [ -e "$file" ] || continue
    pid=$(cat "$file")
    # `unshare` ignores SIGTERM while it waits. A number from before a reboot may be somebody else's by now.
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != unshare ] || kill -9 "$pid" || true
  done
  wait_until 30 "the cluster's processes to end" no_process_left
}
no_process_left() {
  local own dir
  own=$(readlink /proc/self/ns/pid)
  for dir in /proc/[1-9]*; do
    # Ours, and in a PID namespace of its own: not a kubectl that somebody runs.
    ! tr '\0' ' ' 2>/dev/null <"$dir/cmdline" | grep -qF -e "$STATE/" -e "$STATE " || [ "$(readlink "$dir/ns/pid")" = "$own" ] || return 1
  done
}

keep_logs() {
  [ -n "${KEEP_LOGS:-}" ] || return 0
  rm -rf "$KEEP_LOGS"
  mkdir -p "$KEEP_LOGS"
  cp -r "$STATE"/*.log "$STATE/log" "$KEEP_LOGS/"
  local i
  for i in $(seq "$NODES"); do
    mkdir -p "$KEEP_LOGS/node-$i"
    cp -rL "$STATE/node-$i/log" "$STATE/node-$i/pod-logs" "$KEEP_LOGS/node-$i/" || true
  done
}

sweep() {
  stop_processes
  network_down
  cgroups_down
  rm -rf --one-file-system "$STATE"
}
teardown() {
  trap '' TERM INT HUP PIPE
  trap - EXIT
  [ -z "${WAITER:-}" ] || kill "$WAITER" 2>/dev/null || true
  if [ ! -e "$STATE/ready" ]; then
    KEEP_LOGS=${KEEP_LOGS:-$STATE-logs}
    say "it did not become ready; its logs are kept in $KEEP_LOGS"
  fi
  keep_logs 2>/dev/null || true
  sweep
  : >"$LOCK"
}

exec 9<>"$LOCK"
until flock -w 1 9; do
  ! grep -q ' kept ' "$LOCK" || die "a cluster is kept running here by hand: end it first with 'make cluster-down'"
done
: >"$LOCK"
sweep
[ "$MODE" != sweep ] || exit 0
echo "$$ $MODE $STATE" >"$LOCK"
trap 'exit 143' TERM INT HUP
trap teardown EXIT

mkdir -m 700 "$STATE"
mkdir "$STATE/log" "$STATE/loaded"
echo "$NODES" >"$STATE/nodes"
certificates "$NODES"
network_up "$NODES"
apart control-plane bash "$HERE/control-plane.sh" "$STATE"
for i in $(seq "$NODES"); do apart "node-$i" nsenter --net="/run/netns/$(node_netns "$i")" bash "$HERE/node.sh" "$i" "$STATE"; done

nodes_ready() { [ "$(kubectl get nodes 2>/dev/null | grep -c ' Ready')" = "$NODES" ]; }
wait_until 120 "the API server" test -e "$STATE/api-ready"
wait_until 120 "$NODES ready nodes" nodes_ready
# A fresh cluster refuses pods until this account exists.
wait_until 60 "the service account default" kubectl get serviceaccount default
touch "$STATE/ready"
[ "$MODE" != tied ] || echo "$STATE/admin.kubeconfig"

# A signal interrupts `wait`, but not a `read` of our own.
if [ "$MODE" = tied ]; then cat <&3 >/dev/null 9>&- & else sleep infinity 3<&- 9>&- & fi
WAITER=$!
wait "$WAITER" || true
