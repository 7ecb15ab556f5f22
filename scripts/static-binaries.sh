#!/usr/bin/env bash
# Builds the operator and the worker as static executables, which run on an empty base image, and prints the folder that
# holds them. Used by the images of the development cluster and by the Dockerfile.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: //p')
# Naming the target keeps the flag away from build scripts and procedural macros, which cannot be static.
RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --release --target "$target" \
  -p mqtt-loadtest-operator --bin mqtt-loadtest -p mqtt-loadtest-worker --bin mqtt-loadtest-worker >&2
echo "${CARGO_TARGET_DIR:-target}/$target/release"
