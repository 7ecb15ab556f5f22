# shellcheck shell=bash
# Names, places and the voice that every script here shares. Sourced, never run.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$HERE/../.." && pwd)
# What a running cluster writes. Never inside the repository, and root's alone: it holds private keys.
STATE=${STATE:-/var/lib/mqtt-loadtest-cluster}
CACHE=${CACHE:-$HOME/.cache/mqtt-loadtest/cluster}
# One cluster a machine: bridge, addresses and ports below are the machine's, so the lock is too.
LOCK=/run/mqtt-loadtest-cluster.lock

# Everything listens on these and on 127.0.0.1, nothing else.
BRIDGE=mlt0
HOST_IP=10.88.0.1
API=https://$HOST_IP:16443
SERVICES=10.96.0.0/16
node_ip() { echo "10.88.0.1$1"; }
node_pods() { echo "10.9$1.0.0/16"; }
node_netns() { echo "mlt-node-$1"; }
MAX_NODES=3

say() { echo "cluster: $*" >&2; }
die() {
  say "$*"
  exit 1
}

# The executables belong to the sources they were built from; so the folder's name is a hash of these.
cache_key() { cat "$HERE"/kube/*.go "$HERE"/kube/pause/*.go "$HERE"/kube/go.* "$HERE"/build.sh | sha256sum | cut -c1-12; }
BIN=$CACHE/$(cache_key)
BASE_IMAGES=$BIN/images # imported into every node: pause and mosquitto

# E2E_KUBECONFIG names a cluster somebody has already, to be used instead of one started here.
kubeconfig() { echo "${E2E_KUBECONFIG:-$STATE/admin.kubeconfig}"; }
tool() {
  if [ -x "$BIN/$1" ]; then echo "$BIN/$1"; else type -P "$1" || die "$1 is missing: run 'e2e/cluster/cluster build', which makes one"; fi
}
kubectl() { KUBECONFIG=$(kubeconfig) "$(tool kubectl)" "$@"; }
helm() { KUBECONFIG=$(kubeconfig) "$(tool helm)" "$@"; }

# wait_until SECONDS WHAT COMMAND...: the command's first success, or an end that says what was waited for.
wait_until() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || die "gave up waiting for $what"
    sleep 0.1
  done
}

# Of a running cluster, while its supervisor holds the lock: the supervisor's pid, its mode (kept or tied), its state
# folder. Sets HOLDER, MODE and STATE.
holder() {
  [ -s "$LOCK" ] || return 1
  if flock --shared --nonblock "$LOCK" true; then return 1; fi
  read -r HOLDER MODE STATE <"$LOCK" && export STATE
}
