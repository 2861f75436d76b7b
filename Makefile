# Warren's verbs. `make help` lists them. They need make, bash and Python 3.11 or newer; the demo needs Java 17, too.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
# A recipe that failed halfway leaves no file that the next call would take for finished.
.DELETE_ON_ERROR:

# The first interpreter that really runs and is new enough; `make PYTHON=/path/to/python3 ...` chooses another.
PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$name && break; done)

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Empty: the slim image of the interpreter in .venv, because the wheels are built for that one.
BASE_IMAGE ?=
IMAGE ?= warren:latest
# The default demo and its size: see `warren chaos run --help`.
SCENARIO ?= kill-master
DEMO_OPTIONS ?=
# Scenarios of `make chaos`: a tag of `warren chaos list`, or full.
SUITE ?= smoke
# Every test is in exactly one of these: `make test` runs the first, `make integration` the next two, `make containers`
# what is left.
FAST := not (integration or spark or slow or docker)
LONG := slow and not (integration or spark or docker)
REAL := (integration or spark) and not docker
# Side by side, and with compiled tests kept from run to run: to rewrite their assertions is half of the start. Without
# a folder: those of `testpaths`, for what is not in them needs processes (tests/test_architecture.py sees to it). Their
# files are in memory where there is room: a slow disk would be a quarter of the time.
MEMORY := $(shell test -w /dev/shm && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 2000000 { print "/dev/shm" }')
PURE_TESTS := env -u PYTHONDONTWRITEBYTECODE $(if $(MEMORY),TMPDIR=$(MEMORY)) $(BIN)/python -m pytest -n auto --dist worksteal

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- set-up ---

.PHONY: install
install: $(INSTALLED) ## Create .venv with everything pinned (the other targets do it themselves)
	@:

$(INSTALLED): pyproject.toml constraints.txt
	@if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
		echo "Warren needs Python 3.11 or newer; found: $(or $(PYTHON),none). Name one: make PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi
	@if [ ! -x $(BIN)/python ]; then \
		echo "Creating $(VENV) with $$($(PYTHON) --version) ..."; \
		$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
			echo "python -m venv failed; on Debian and Ubuntu install the package python3-venv" >&2; exit 1; }; \
	fi
	@echo "Installing the pinned dependencies into $(VENV) (some minutes the first time) ..."
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off \
		--constraint constraints.txt --editable '.[chaos,dev]' 2>&1 \
		| tee $(VENV)/install.log | sed -n 's/^Collecting \([^ ]*\).*/  \1/p' \
		|| { tail -n 20 $(VENV)/install.log >&2; echo "The installation failed; all of it is in $(VENV)/install.log" >&2; exit 1; }
	@touch $@

.PHONY: java
java:
	@program="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$program" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1 || true); \
	if [ "$${version:-0}" -lt 17 ]; then \
		echo "The analysis runs on Spark, which needs Java 17 or newer; found: $${version:-none}." >&2; \
		echo "Install it (Debian and Ubuntu: apt-get install openjdk-17-jre-headless) or point JAVA_HOME at it." >&2; \
		exit 1; \
	fi

# --- verbs ---

.PHONY: demo
demo: ## Kill masters under load on a real three-node cluster and account for every message
	@$(MAKE) java
	@$(MAKE) install
	@rm -rf demo-out
	@$(BIN)/warren chaos run $(SCENARIO) --seed 1 --out demo-out $(DEMO_OPTIONS)

# No newer one is known to behave as chaos/harm/toxiproxy.py says.
TOXIPROXY_VERSION := v2.5.0

.PHONY: toxiproxy
toxiproxy: install ## Get the Toxiproxy server, for faults of lines (needs Go)
	@if ! command -v go >/dev/null; then echo "the Toxiproxy server is built with Go: install it (Debian: golang-go)" >&2; exit 1; fi
	@test -x $(BIN)/toxiproxy-server || { \
		built=$$(mktemp -d) && \
		GOBIN=$$built GOFLAGS=-mod=mod go install github.com/Shopify/toxiproxy/v2/cmd/server@$(TOXIPROXY_VERSION) && \
		mv $$built/server $(abspath $(BIN))/toxiproxy-server && rmdir $$built; }
	@echo "$(abspath $(BIN))/toxiproxy-server"

.PHONY: test
test: install ## Fast tests, side by side on all cores: no sockets, no processes
	@$(PURE_TESTS) -m "$(FAST)"

.PHONY: integration
integration: install ## Long tests, then those with real processes, sockets and Spark (not Docker)
	@$(MAKE) java
	@$(PURE_TESTS) -m "$(LONG)"
	@$(BIN)/python -m pytest -o timeout_method=signal tests -m "$(REAL)"

.PHONY: chaos
chaos: install ## The chaos scenarios of SUITE (smoke, or full), results in out/index.html
	@$(MAKE) java
	@$(BIN)/warren chaos suite $(SUITE) --out out

# Seeds of a sample. SIM_OPTIONS as in `warren sim --help`, say SIM_OPTIONS='--summary sim-out/summary.json'.
SEEDS ?= 1..200
SIM_OPTIONS ?=
.PHONY: sim
sim: install ## Whole clusters in the simulator, one for each of SEEDS
	@$(BIN)/warren sim --seeds $(SEEDS) $(SIM_OPTIONS)

# A third of the time as usual, a third with small worlds, a third with five nodes; an interrupted run is entered, too.
.PHONY: campaign
campaign: install ## Many seeds behind those of all campaigns before, for MINUTES: docs/campaigns.md
	@status=0; trap 'exit 130' INT; \
	for size in "--nodes 3" "--nodes 3 --operations 60 --length 7" "--nodes 5 --operations 60 --length 7"; do \
	    echo "warren sim $$size"; \
	    $(BIN)/warren sim --ledger docs/campaigns.json $$size --seconds $$(( $(MINUTES) * 20 )) --shrink-runs 200 || status=1; \
	done; exit $$status

# How long, and how many; a run that ends early is gone on with by the next. Others: MUTANT_OPTIONS="--packages raft".
MINUTES ?= 60
MUTANTS ?= 400
MUTANT_OPTIONS ?=
.PHONY: mutants
mutants: install ## Small mistakes put into the code, one at a time: how many do tests and simulator notice?
	@$(BIN)/python -m tests.mutation --minutes $(MINUTES) --count $(MUTANTS) --jobs $$(nproc) --write-table $(MUTANT_OPTIONS)

# Goes on where it was interrupted with ABLATE=--missing
ABLATE ?=
.PHONY: ablation
ablation: install ## Each safeguard taken away in the simulator until a seed shows it: docs/ablation.md
	@$(BIN)/warren sim ablate $(ABLATE)

.PHONY: test-all
test-all: ## Everything but containers: check, test, integration, chaos
	@$(MAKE) check
	@$(MAKE) test
	@$(MAKE) integration
	@$(MAKE) chaos

.PHONY: check
check: install ## Lint, format, types, architecture, spelling, generated code
	@echo "ruff check" && $(BIN)/ruff check .
	@echo "ruff format" && $(BIN)/ruff format --check .
	@echo "mypy" && $(BIN)/mypy
	@echo "import-linter" && $(BIN)/lint-imports
	@echo "codespell" && git ls-files -z | xargs -0 $(BIN)/codespell
	@echo "generated code" && $(BIN)/python -m tests.support.wire_code --check

.PHONY: fmt
fmt: install ## Format the code and mend what can be mended by itself
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

.PHONY: proto
proto: install ## Make cluster/wire from proto/
	@$(BIN)/python -m tests.support.wire_code

.PHONY: bench
bench: install ## Measure the codec; tests/bench holds the longer measurements
	@$(BIN)/python -m tests.bench.codec_bench

.PHONY: image
image: install deploy/cookie ## Build the container image warren:latest (BASE_IMAGE=..., IMAGE=...)
	@rm -rf build/wheels build/lib build/bdist.*
	@echo "Building wheels ..."
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --constraint constraints.txt --wheel-dir build/wheels .
	@base="$(BASE_IMAGE)"; \
	docker build --network none --build-arg "BASE_IMAGE=$${base:-python:$$($(BIN)/python -c \
		'import sys; print("%d.%d-slim" % sys.version_info[:2])')}" --file deploy/Dockerfile --tag $(IMAGE) build/wheels

# The secret of the compose cluster. Readable by all, because the containers' user is another one than yours.
deploy/cookie: | $(INSTALLED)
	@$(BIN)/python -c 'import secrets; print(secrets.token_hex(16))' > $@
	@chmod 644 $@

.PHONY: containers
containers: image ## Build the image and test the compose cluster made of it (needs a Docker engine)
	@WARREN_IMAGE=$(IMAGE) $(BIN)/python -m pytest -o timeout_method=signal tests -m docker

.PHONY: clean
clean: ## Remove everything that make and the tools made, .venv included
	@rm -rf $(VENV) build dist *.egg-info demo-out out sim-out chaos-runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
