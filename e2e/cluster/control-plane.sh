#!/usr/bin/env bash
# Runs etcd, kube-apiserver, kube-controller-manager, kube-scheduler and CoreDNS and waits on them, in a mount and PID
# namespace of its own (supervise.sh makes it). The certificates are there already.
# Argument: the state folder, which tells whose process this is.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
PKI=$STATE/pki

start() {
  local name=$1
  shift
  "$@" >"$STATE/log/$name.log" 2>&1 &
}

# Who wrote what: kept for people and their service accounts, not for Kubernetes's own chatter. Tests count the
# operator's requests in it.
cat >"$STATE/audit-policy.yaml" <<POLICY
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, userGroups: ["system:serviceaccounts:kube-system", "system:nodes"]}
- {level: None, users: ["system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy", "system:apiserver"]}
- {level: Metadata}
POLICY

ETCD=http://127.0.0.1:12379 PEER=http://127.0.0.1:12380
start etcd "$BIN/etcd" --data-dir "$STATE/etcd" --unsafe-no-fsync --listen-client-urls "$ETCD" --advertise-client-urls "$ETCD" \
  --listen-peer-urls "$PEER" --initial-advertise-peer-urls "$PEER" --initial-cluster "default=$PEER"
start kube-apiserver "$BIN/kube-apiserver" --etcd-servers "$ETCD" \
  --bind-address "$HOST_IP" --secure-port 16443 --advertise-address "$HOST_IP" --endpoint-reconciler-type lease \
  --client-ca-file "$PKI/ca.crt" --tls-cert-file "$PKI/apiserver.crt" --tls-private-key-file "$PKI/apiserver.key" \
  --service-account-key-file "$PKI/sa.pub" --service-account-signing-key-file "$PKI/sa.key" \
  --service-account-issuer https://kubernetes.default.svc --service-cluster-ip-range "$SERVICES" \
  --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
  --audit-policy-file "$STATE/audit-policy.yaml" --audit-log-path "$STATE/audit.log" --audit-log-maxsize 2000 \
  --kubelet-client-certificate "$PKI/admin.crt" --kubelet-client-key "$PKI/admin.key" \
  --kubelet-certificate-authority "$PKI/ca.crt" --kubelet-preferred-address-types InternalIP
api_ready() {
  curl -sf --max-time 5 --cacert "$PKI/ca.crt" --cert "$PKI/admin.crt" --key "$PKI/admin.key" "$API/readyz"
}
wait_until 120 "the API server" api_ready
touch "$STATE/api-ready"

start controller-manager "$BIN/kube-controller-manager" --kubeconfig "$STATE/controller-manager.kubeconfig" \
  --service-account-private-key-file "$PKI/sa.key" --root-ca-file "$PKI/ca.crt" \
  --use-service-account-credentials --leader-elect=false --node-monitor-grace-period 12s
start scheduler "$BIN/kube-scheduler" --kubeconfig "$STATE/scheduler.kubeconfig" --leader-elect=false
cat >"$STATE/Corefile" <<CONFIG
.:53 {
  bind $HOST_IP
  errors
  cache 5
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    kubeconfig $STATE/admin.kubeconfig
    pods insecure
    ttl 1
  }
  template ANY ANY {
    rcode NXDOMAIN
  }
}
CONFIG
start coredns "$BIN/coredns" -conf "$STATE/Corefile"
wait
