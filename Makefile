# Everything a person runs by hand. `make` or `make help` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
CLUSTER := e2e/cluster/cluster
CRD := crds/mqttloadtests.yaml
CHART := charts/mqtt-loadtest-operator
TOOLS := $(HOME)/.cache/mqtt-loadtest/tools
DENY := $(TOOLS)/bin/cargo-deny
CARGO_DENY_VERSION := 0.20.2
NODES ?= 1
export NODES
# Where rustup, Go and Debian put programs that a plain PATH may not name.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/go/bin:/usr/sbin:/sbin

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  Variables: NODES=1..3 (cluster-up), E2E_KUBECONFIG=FILE with E2E_OPERATOR_IMAGE and E2E_WORKER_IMAGE"
	@echo "  (tests on a cluster you have), TESTS=NAME (only matching cluster tests), ADVISORY_DB=FOLDER (audit)"

## Building

.PHONY: setup
setup: ## Install what is missing on this machine (Debian, root), or name it
	@scripts/setup.sh

.PHONY: build
build: ## Build all crates for development
	cargo build --locked --workspace

.PHONY: images
images: setup ## Build the operator's and the worker's images (target/images/*.tar; first time about 6 minutes)
	@echo "Building static release binaries and their images (about 6 minutes the first time, then what changed)"
	@scripts/images.sh

.PHONY: generate
generate: ## Write the CRD from the Rust types, for crds/ and the chart
	cargo run --quiet --locked -p mqtt-loadtest-operator --bin mqtt-loadtest -- crd > target/crd.yaml
	cp target/crd.yaml $(CRD)
	cp target/crd.yaml $(CHART)/files/mqttloadtests.yaml

.PHONY: clean
clean: ## Remove what was built here (the cluster's executables in ~/.cache stay)
	cargo clean

## Checking

.PHONY: lint
lint: $(DENY) ## Formatting, clippy, shellcheck where it is installed, bans, licences and sources of dependencies
	@echo "Lint: formatting, clippy, scripts, dependencies (about 3 minutes the first time)"
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --quiet -- -D warnings
	if command -v shellcheck >/dev/null; then shellcheck $(CLUSTER) e2e/cluster/*.sh scripts/*.sh .ci/run; fi
	$(DENY) --locked --log-level error check bans licenses sources

$(DENY):
	@echo "Building cargo-deny, once (about 5 minutes)"
	cargo install --quiet --locked --root $(TOOLS) --version $(CARGO_DENY_VERSION) cargo-deny

.PHONY: audit
audit: $(DENY) ## Known vulnerabilities of dependencies; ADVISORY_DB=FOLDER gives the database where it cannot be fetched
	@scripts/audit.sh $(DENY)

.PHONY: test
test: setup ## Everything: lint, unit and property tests, cluster tests (about 20 minutes; 45 the first time)
	@echo "Lint, unit and property tests, then tests on a real cluster: about 20 minutes, 45 the first time"
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-unit
	@$(MAKE) --no-print-directory test-cluster

.PHONY: test-unit
test-unit: ## Unit and property tests; no cluster, no root
	@echo "Unit and property tests (about 2 minutes, and 4 to build the first time)"
	cargo test --locked --workspace --exclude mqtt-loadtest-e2e
	cargo test --locked -p mqtt-loadtest-e2e --lib --test generated

.PHONY: test-cluster
test-cluster: images ## Tests on a real cluster that is started for them and ends with them
	@scripts/test-cluster.sh

.PHONY: bench
bench: ## The client engine against a bare floor, the operator with 1,000 workers; a table and target/bench.json (16 minutes)
	@echo "Engine benchmark: interleaved pairs against a raw epoll floor (about 15 minutes; leave the machine alone meanwhile)"
	cargo bench --locked -p mqtt-loadtest-worker --bench engine
	@echo "Operator benchmark: rounds over 1,000 workers, 100 of them hanging at the end (about 20 seconds, and the build)"
	cargo bench --locked -p mqtt-loadtest-operator --bench scrape

.PHONY: bench-start
bench-start: images ## Time from apply to the first PUBLISH on a warm cluster: 1,000 clients at 2,000/s (about 2 minutes)
	@echo "From apply to the first PUBLISH, six runs (about 2 minutes, and the build)"
	$(CLUSTER) build >/dev/null
	cargo bench --locked --profile dev -p mqtt-loadtest-e2e --bench first_publish

## Using

.PHONY: demo
demo: images ## The quickstart on a cluster of its own, from nothing to a verdict (about 2 minutes; 15 the first time)
	@scripts/demo.sh

.PHONY: demo-run
demo-run: ## The quickstart without a cluster, against a broker in the process (about 70 seconds)
	cargo run --quiet --locked --release -p mqtt-loadtest-operator --bin mqtt-loadtest -- run examples/quickstart.yaml --broker embedded

.PHONY: cluster-up
cluster-up: images ## A cluster with the operator of this working tree and mosquitto.mqtt.svc:1883, left running
	@$(CLUSTER) up >/dev/null
	@$(CLUSTER) mosquitto
	@$(CLUSTER) install
	@echo "Ready. Its kubeconfig: export KUBECONFIG=$$($(CLUSTER) kubeconfig)"
	@echo "A broker for your manifests: mqtt://mosquitto.mqtt.svc:1883 (1884: user loadtest, password secret)"

.PHONY: cluster-down
cluster-down: ## End that cluster
	@$(CLUSTER) down

.PHONY: kubeconfig
kubeconfig: ## Print the path of its kubeconfig (make -s kubeconfig)
	@$(CLUSTER) kubeconfig
