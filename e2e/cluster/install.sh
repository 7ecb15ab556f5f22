# shellcheck shell=bash
# Puts the operator of this working tree into the cluster: images, chart, and the mosquitto of e2e/manifests. Doing it
# again brings in what changed and leaves the rest alone.

RELEASE=mqtt-loadtest
RELEASE_NAMESPACE=mqtt-loadtest-system

# Whether the cluster in use is one that was started here: only then can images be put into its nodes.
ours() { (holder && [ -e "$STATE/ready" ] && [ "$(kubeconfig)" = "$STATE/admin.kubeconfig" ]); }

install_operator() { # further arguments go to helm
  local operator worker archive=none
  if ours; then
    load_images "$REPO/target/images/operator.tar" "$REPO/target/images/worker.tar"
    operator=localhost/mqtt-loadtest-operator:dev
    worker=localhost/mqtt-loadtest-worker:dev
    archive=$(sha256sum "$REPO/target/images/operator.tar" | cut -c1-16)
  else
    operator=${E2E_OPERATOR_IMAGE:?name the operator image that this cluster can pull}
    worker=${E2E_WORKER_IMAGE:?name the worker image that this cluster can pull}
  fi
  # Whatever the chart makes there has to meet the strictest standard.
  kubectl create namespace "$RELEASE_NAMESPACE" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  kubectl label namespace "$RELEASE_NAMESPACE" --overwrite pod-security.kubernetes.io/enforce=restricted >/dev/null
  # A helm that was killed leaves a lock behind. Uninstalling keeps the CRD, and with it the tests.
  if ours && [ -n "$(helm list --namespace "$RELEASE_NAMESPACE" --pending --short)" ]; then
    helm uninstall "$RELEASE" --namespace "$RELEASE_NAMESPACE" --no-hooks --wait >/dev/null
  fi
  # The tag stays while the image changes; so the pod's template names the archive.
  helm upgrade --install "$RELEASE" "$REPO/charts/mqtt-loadtest-operator" --namespace "$RELEASE_NAMESPACE" \
    --wait --timeout 120s --set-string "podAnnotations.image-archive=$archive" \
    --set "image.repository=${operator%:*}" --set-string "image.tag=${operator##*:}" \
    --set "worker.image.repository=${worker%:*}" --set-string "worker.image.tag=${worker##*:}" "$@" >/dev/null || {
    kubectl -n "$RELEASE_NAMESPACE" get pods,jobs,events >&2
    kubectl -n "$RELEASE_NAMESPACE" logs --selector "app.kubernetes.io/instance=$RELEASE" --tail 20 >&2 || true
    die "the chart did not install; see above, and 'kubectl -n $RELEASE_NAMESPACE describe pods'"
  }
  # helm waits for new pods, not for old ones to be gone, one of which may still lead.
  wait_until 60 "the operator's old pods to end" only_new_pods
}
only_new_pods() {
  local deployment pods
  deployment=$(kubectl -n "$RELEASE_NAMESPACE" get deployments --selector "app.kubernetes.io/instance=$RELEASE" -o jsonpath='{.items[0].spec.replicas}')
  pods=$(kubectl -n "$RELEASE_NAMESPACE" get pods --selector "app.kubernetes.io/instance=$RELEASE" --no-headers | wc -l)
  [ "$pods" -eq "$deployment" ]
}

install_mosquitto() {
  local image=localhost/mosquitto:dev
  ours || image=eclipse-mosquitto:2
  sed "s|localhost/mosquitto:dev|${E2E_MOSQUITTO_IMAGE:-$image}|" "$REPO/e2e/manifests/mosquitto.yaml" | kubectl apply -f - >/dev/null
  kubectl -n mqtt rollout status deployment/mosquitto --timeout 60s >/dev/null || die "mosquitto did not start: kubectl -n mqtt describe pods"
}
