#!/usr/bin/env bash
# Makes sure that this machine has what building and the development cluster need: installs Debian packages where it
# may (root), and names what it cannot install. Quick when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
. e2e/cluster/lib.sh
. e2e/cluster/packages.sh

command -v cargo >/dev/null || PATH=$PATH:$HOME/.cargo/bin
command -v cargo >/dev/null || die "Rust is missing: install it with rustup, see https://rustup.rs"
needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
have=$(rustc --version | cut -d' ' -f2)
[ "$(printf '%s\n' "$needed" "$have" | sort -V | head -n 1)" = "$needed" ] || die "Rust $needed or newer is needed, this is $have: run 'rustup update stable'"
command -v cc >/dev/null || { command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ] && install_quietly gcc libc6-dev; } ||
  die "a C compiler is missing (Rust links with it): install gcc"
if [ -z "${E2E_KUBECONFIG:-}" ]; then ensure_packages; fi
