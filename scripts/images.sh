#!/usr/bin/env bash
# Makes the operator's and the worker's images as tar archives under target/images, without a container engine:
# localhost/mqtt-loadtest-operator:dev and localhost/mqtt-loadtest-worker:dev, each one static executable.
set -euo pipefail
cd "$(dirname "$0")/.."
. e2e/cluster/image.sh
binaries=$(scripts/static-binaries.sh)
image localhost/mqtt-loadtest-operator:dev target/images/operator.tar '["/mqtt-loadtest"]' "$binaries/mqtt-loadtest=/mqtt-loadtest"
image localhost/mqtt-loadtest-worker:dev target/images/worker.tar '["/mqtt-loadtest-worker"]' "$binaries/mqtt-loadtest-worker=/mqtt-loadtest-worker"
ls -lh target/images/*.tar >&2
