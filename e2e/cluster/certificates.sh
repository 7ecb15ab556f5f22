# shellcheck shell=bash
# The cluster's certificates and kubeconfigs, made anew for every start. Elliptic curves: a tenth of RSA's time.

new_key() { openssl ecparam -genkey -name prime256v1 -noout -out "$1"; }

certificates() { # NODES
  local i
  PKI=$STATE/pki
  mkdir -p "$PKI"
  new_key "$PKI/ca.key"
  openssl req -x509 -new -key "$PKI/ca.key" -subj /CN=dev-ca -days 365 -out "$PKI/ca.crt"
  new_key "$PKI/sa.key"
  openssl ec -in "$PKI/sa.key" -pubout -out "$PKI/sa.pub" 2>/dev/null
  identity apiserver /CN=kube-apiserver "DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1,IP:$HOST_IP"
  identity admin /O=system:masters/CN=admin DNS:admin
  identity controller-manager /CN=system:kube-controller-manager DNS:controller-manager
  identity scheduler /CN=system:kube-scheduler DNS:scheduler
  identity proxy /CN=system:kube-proxy DNS:proxy
  # Without the node's address among its names `kubectl logs` fails.
  for i in $(seq "$1"); do identity "node-$i" "/O=system:nodes/CN=system:node:node-$i" "DNS:node-$i,IP:$(node_ip "$i")"; done
}

identity() { # NAME SUBJECT ALT_NAMES
  new_key "$PKI/$1.key"
  openssl req -new -key "$PKI/$1.key" -subj "$2" -out "$PKI/$1.csr"
  openssl x509 -req -in "$PKI/$1.csr" -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial -days 365 -out "$PKI/$1.crt" \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$3") 2>/dev/null
  cat >"$STATE/$1.kubeconfig" <<CONFIG
apiVersion: v1
kind: Config
clusters:
- {name: dev, cluster: {server: "$API", certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")}}
users:
- {name: $1, user: {client-certificate-data: $(base64 -w0 "$PKI/$1.crt"), client-key-data: $(base64 -w0 "$PKI/$1.key")}}
contexts:
- {name: dev, context: {cluster: dev, user: $1}}
current-context: dev
CONFIG
}
