#!/usr/bin/env bash
# Runs the cluster tests: on a cluster that they start for themselves and that ends with them, or on the one that
# E2E_KUBECONFIG names. TESTS=NAME runs only those whose name contains it. Logs of the cluster stay in target/e2e.
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=e2e/cluster/cluster
export KEEP_LOGS=$PWD/target/e2e/logs
export RUST_BACKTRACE=${RUST_BACKTRACE:-0}
mkdir -p target/e2e
cargo test --locked --quiet -p mqtt-loadtest-e2e --no-run
if [ -z "${E2E_KUBECONFIG:-}" ]; then
  "$cluster" build >/dev/null
  if [ -z "${TESTS:-}" ]; then
    echo "The cluster's own life: starts, ends with its parent, leaves nothing (about 1 minute)"
    cargo test --locked --quiet -p mqtt-loadtest-e2e --test lifecycle -- --test-threads 1
  fi
fi
echo "Tests on a real cluster (about 10 minutes)"
cargo test --locked -p mqtt-loadtest-e2e --test cluster -- ${TESTS:+"$TESTS"}
