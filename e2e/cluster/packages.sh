# shellcheck shell=bash
# What the cluster needs from the system: installs it where it can (Debian, root), else names it in one sentence.

# command-or-file=Debian package
NEEDED="containerd=containerd ctr=containerd runc=runc iptables=iptables ip=iproute2 openssl=openssl curl=curl
  mosquitto=mosquitto mosquitto_sub=mosquitto-clients tcpdump=tcpdump sysctl=procps flock=util-linux setpriv=util-linux
  unshare=util-linux nsenter=util-linux"

# Where distributions put the CNI plugins.
cni_dir() {
  local dir
  for dir in /usr/lib/cni /opt/cni/bin /usr/libexec/cni; do [ -x "$dir/bridge" ] && echo "$dir" && return; done
  return 1
}

missing_packages() {
  local pair
  for pair in $NEEDED; do command -v "${pair%=*}" >/dev/null || echo "${pair#*=}"; done | sort -u
  cni_dir >/dev/null || echo containernetworking-plugins
}

# A fresh Debian package starts its service at once; nobody asked for a broker or a container engine on this machine.
install_quietly() {
  local policy=/usr/sbin/policy-rc.d made=
  if [ ! -e "$policy" ]; then
    made=$policy
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  local log rc=0
  log=$(mktemp)
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } >"$log" 2>&1 || rc=$?
  [ -z "$made" ] || rm -f "$made"
  [ "$rc" -eq 0 ] || tail -n 5 "$log" >&2
  rm -f "$log"
  return "$rc"
}

ensure_packages() {
  PATH=$PATH:/usr/sbin:/sbin
  [ "$(id -u)" -eq 0 ] || die "the development cluster makes network namespaces and cgroups: run it as root, or set E2E_KUBECONFIG to use a cluster you have"
  local missing
  missing=$(missing_packages | tr '\n' ' ')
  if [ -n "$missing" ]; then
    command -v apt-get >/dev/null || die "these are missing (by their Debian package names), please install them: $missing"
    say "installing $missing"
    # shellcheck disable=SC2086 # a list of words
    install_quietly $missing || die "apt-get could not install these, please do: $missing"
  fi
  ensure_go
}

ensure_go() {
  local version
  command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin
  command -v go >/dev/null || die "Go 1.25 or newer is missing: install it from https://go.dev/dl/ (it builds the cluster's Kubernetes from source)"
  version=$(go env GOVERSION)
  [ "$(printf '%s\n' go1.25 "$version" | sort -V | head -n 1)" = go1.25 ] || die "Go 1.25 or newer is needed, $(command -v go) is $version: see https://go.dev/dl/"
}
