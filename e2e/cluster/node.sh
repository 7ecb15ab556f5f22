#!/usr/bin/env bash
# Runs containerd, kubelet and kube-proxy as node number I (1 to 3) and waits on them, in a mount, PID and network
# namespace of its own, where eth0 is already there (supervise.sh and network.sh make these). Arguments: I, and the state folder, which tells whose process this is.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$HERE/packages.sh"
. "$HERE/cgroups.sh"
I=$1 NODE=node-$1 IP=$(node_ip "$1") PODS=$(node_pods "$1") DIR=$STATE/node-$1
mkdir -p "$DIR/cni" "$DIR/log"

# What these programs keep at fixed places is this node's own and goes with its mount namespace: the pods' network
# namespaces, the shims' sockets, device plugins, links to logs.
for place in /run/netns /run/containerd /var/lib/kubelet /var/log/containers; do
  mkdir -p "$place"
  mount -t tmpfs tmpfs "$place"
done
cgroup_up "$I"
ulimit -Sn "$(ulimit -Hn)" # pods inherit it, and a broker or a shard wants every descriptor it can get
echo "nameserver $HOST_IP" >"$DIR/resolv.conf"

cat >"$DIR/containerd.toml" <<CONFIG
version = 2
root = "$DIR/containerd"
state = "$DIR/run"
[grpc]
address = "$DIR/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:dev"
restrict_oom_score_adj = true # without CAP_SYS_RESOURCE a score cannot be lowered
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$(cni_dir)"
conf_dir = "$DIR/cni"
CONFIG
# A routed veth a pod and no bridge: Service addresses then work between pods of one node whether or not the kernel
# has br_netfilter.
cat >"$DIR/cni/10-dev.conflist" <<CONFIG
{"cniVersion": "0.4.0", "name": "dev", "plugins": [
  {"type": "ptp",
   "ipam": {"type": "host-local", "dataDir": "$DIR/ipam", "ranges": [[{"subnet": "$PODS"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CONFIG
# The lease is renewed every 2 s (a quarter of its length), so that a busy machine does not look like a dead node.
cat >"$DIR/kubelet.yaml" <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $STATE/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $STATE/pki/$NODE.crt
tlsPrivateKeyFile: $STATE/pki/$NODE.key
containerRuntimeEndpoint: unix://$DIR/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /mlt-$NODE
failCgroupV1: false
failSwapOn: false
clusterDNS: [$HOST_IP]
clusterDomain: cluster.local
resolvConf: $DIR/resolv.conf
podLogsDir: $DIR/pod-logs
volumePluginDir: $DIR/volume-plugins
maxPods: 500
nodeLeaseDurationSeconds: 8
serializeImagePulls: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 200Mi, nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
CONFIG
cat >"$DIR/proxy.yaml" <<CONFIG
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $STATE/proxy.kubeconfig}
mode: iptables
hostnameOverride: $NODE
clusterCIDR: $PODS
conntrack: {maxPerCore: 0}
CONFIG

start() {
  local name=$1
  shift
  "$@" >"$DIR/log/$name.log" 2>&1 &
}
start containerd containerd --config "$DIR/containerd.toml"
wait_until 30 "containerd of $NODE" test -S "$DIR/containerd.sock"
for image in "$BASE_IMAGES"/*.tar; do ctr -a "$DIR/containerd.sock" -n k8s.io images import "$image"; done
# A kubelet that finds no API server retries later and later; so it is not started earlier.
wait_until 120 "the API server" test -e "$STATE/api-ready"
start kubelet "$BIN/kubelet" --config "$DIR/kubelet.yaml" --kubeconfig "$STATE/$NODE.kubeconfig" \
  --hostname-override "$NODE" --node-ip "$IP" --root-dir "$DIR/kubelet"
start proxy "$BIN/kube-proxy" --config "$DIR/proxy.yaml"
wait
