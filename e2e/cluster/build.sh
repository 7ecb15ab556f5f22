# shellcheck shell=bash
# Builds what every cluster is started from, once, into $BIN: Kubernetes, etcd, CoreDNS, helm, and the base images.

KUBERNETES=v1.35.4
HELM=v3.20.2
COMPONENTS="etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl coredns"

build_cluster() {
  mkdir -p "$CACHE"
  exec 8>"$CACHE/.lock"
  flock 8
  [ -x "$BIN/helm" ] || build_executables
  build_base_images
  exec 8>&-
}

build_executables() {
  local part=$BIN.part component
  say "building Kubernetes $KUBERNETES from source, once (about 5 minutes on 2 cores; half a minute where Go's cache is warm)"
  rm -rf "$part"
  mkdir -p "$part"
  # What the projects' own builds set: without these they report, and believe in, versions of years ago.
  local version="-X k8s.io/component-base/version.gitVersion=$KUBERNETES -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=35"
  local of_helm="-X helm.sh/helm/v3/internal/version.version=$HELM" package
  for package in chartutil lint/rules; do
    of_helm+=" -X helm.sh/helm/v3/pkg/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$package.k8sVersionMinor=35"
  done
  (
    cd "$HERE/kube"
    export CGO_ENABLED=0
    go build -trimpath -ldflags "-s -w $version" -o "$part/kube" .
    go build -trimpath -ldflags '-s -w' -o "$part/pause" ./pause
    go build -trimpath -ldflags "-s -w $of_helm" -o "$part/helm" helm.sh/helm/v3/cmd/helm
  ) || die "the Go build failed: see above"
  for component in $COMPONENTS; do ln -s kube "$part/$component"; done
  mv "$part" "$BIN"
  # Builds of older sources are 200 MB each; nobody comes back for them.
  find "$CACHE" -mindepth 1 -maxdepth 1 -type d ! -path "$BIN" -exec rm -rf {} +
}

build_base_images() {
  [ -e "$BASE_IMAGES/pause.tar" ] || image localhost/pause:dev "$BASE_IMAGES/pause.tar" '["/pause"]' "$BIN/pause=/pause"
  [ -e "$BASE_IMAGES/mosquitto.tar" ] ||
    debian_image localhost/mosquitto:dev "$BASE_IMAGES/mosquitto.tar" '["/usr/sbin/mosquitto"]' mosquitto mosquitto_pub mosquitto_sub
}
