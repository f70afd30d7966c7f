# Every task of the project. `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
RUNS := .venv/.runs
STAMP := .venv/.installed
.DEFAULT_GOAL := help
.PHONY: help setup up test lint unit sim integration compiled bounce e2e images spark-image chart format docs bench bench-all bench-log clean

help: ## List the tasks
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

SOURCES := pyproject.toml setup.py constraints.txt $(wildcard protos/headrace/v1/*.proto)
# PySpark has no pyproject.toml, and Debian's pip builds such a one the old way, for which a new .venv lacks a package.
PIP := PIP_USE_PEP517=1 $(BIN)/pip --quiet --disable-pip-version-check
define venv # how long the installation takes
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: set PYTHON=python3.11"; exit 1; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv .venv || { echo "No venv module: apt-get install python3-venv"; rm -rf .venv; exit 1; }
	@echo "Installing into .venv ($(1) the first time)"
endef

# Running Headrace needs far less than testing it (Spark alone is 400 MB), so `make up` does not wait for the rest.
$(RUNS): $(SOURCES)
	$(call venv,about a minute)
	@$(PIP) install -c constraints.txt -e .
	@touch $@

# Of all that the tests bring along little is imported: Python compiles that much by itself, not all 80 MB here.
# Spark comes as an archive of jars that pip makes a wheel of: beside the others, and without deflating the jars again.
SPARK := .venv/.spark
SPARK_THERE = .venv/lib/python3*/site-packages/$(shell sed -n 's/^pyspark==/pyspark-/p' constraints.txt).dist-info
define spark
	mkdir -p $(SPARK) && printf '[bdist_wheel]\ncompression = stored\n' > $(SPARK)/setup.cfg && \
	DIST_EXTRA_CONFIG='$(CURDIR)/$(SPARK)/setup.cfg' $(PIP) wheel -c constraints.txt -w $(SPARK) pyspark
endef
$(STAMP): $(SOURCES)
	$(call venv,about a minute and a half)
	@{ [ -d $(SPARK_THERE) ] || { $(spark); }; } & spark=$$!; \
	  $(PIP) install --no-compile -c constraints.txt -e '.[dev]'; installed=$$?; wait $$spark && exit $$installed
	@$(PIP) install --no-compile --no-index -c constraints.txt --find-links $(SPARK) pyspark
	@rm -rf $(SPARK) && touch $(RUNS) $@

setup: $(STAMP) ## Make .venv and install Headrace and its tools into it

up: $(RUNS) ## Start a local cluster on 127.0.0.1:9092 (Ctrl-C stops it)
	@$(BIN)/headrace dev

test: $(STAMP) ## Run every check and every test that needs no Kubernetes
	@tests/run lint types layers unit sim integration

lint: $(STAMP) ## Check formatting, lint, types and layers
	@tests/run lint types layers

unit: $(STAMP) ## Run the unit tests
	@tests/run unit

SEEDS ?= 200
sim: $(STAMP) ## Run SEEDS=200 simulated clusters over all cores (FIRST= the first seed)
	@$(BIN)/python -m tests.sim --seeds $(SEEDS) $(if $(FIRST),--first $(FIRST))

integration: $(STAMP) ## Run the tests with real processes, a real etcd and real clients
	@tests/run integration

# What images ship, beside the tests: nothing of it is in the way of what is edited.
COMPILED := build/compiled
$(COMPILED)/.made: $(STAMP) $(shell find services/headrace -name '*.py' -not -path '*/v1/*')
	@echo "Compiling the way of a request into $(COMPILED) (about a minute)"
	@rm -rf $(COMPILED) build/lib* build/bdist*
	@HEADRACE_COMPILE=1 $(PIP) install --no-compile --no-deps --target $(COMPILED) .
	@touch $@

compiled: $(COMPILED)/.made ## Run the tests of the way of a request on the compiled code that images ship
	@tests/run compiled

bounce: $(STAMP) ## Stop, kill and pause leaders, followers and controllers five times (ten minutes)
	@HEADRACE_BOUNCES=5 HEADRACE_PAUSE=20 $(BIN)/python -m pytest tests/integration/test_failover.py -s

e2e: $(STAMP) ## Run the journeys on a real Kubernetes: KUBECONFIG's, kind's, or one made here (root on Debian)
	@tests/e2e/run

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
images: ## Build headrace/services and headrace/operator (docker, or buildah where no engine answers)
	@for target in services operator; do tests/e2e/cluster image $$target headrace/$$target:$(VERSION) || exit 1; done

spark-image: ## Build headrace/spark: driver and executors of Spark jobs
	@tests/e2e/cluster image spark headrace/spark:$(VERSION)

chart: $(STAMP) ## Write the chart's generated files (CRDs, rights, golden manifests) and check it
	@$(BIN)/python -m headrace_operator.crds > helm/headrace/crds/headrace.dev.yaml
	@$(BIN)/python -m headrace_operator.rbac > helm/headrace/files/rbac-rules.yaml
	@$(BIN)/python -m headrace_operator.reference > docs/resources.md
	@HEADRACE_GOLDEN=write $(BIN)/python -m pytest tests/unit/chart

format: $(STAMP) ## Format the code and fix what lint can fix
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

docs: $(STAMP) ## Write COMPATIBILITY.md from the handlers' docstrings
	@$(BIN)/python -m headrace.wire.compatibility headrace.broker.handlers headrace.coordinator.handlers > COMPATIBILITY.md

bench: $(COMPILED)/.made ## Compare with Apache Kafka side by side (JOBS='produce/*' BROKERS=1; needs Java 17 and Maven)
	@$(PIP) install -c constraints.txt -e '.[bench]'
	@PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m bench.peers $(if $(BROKERS),--brokers $(BROKERS)) $(JOBS)

MINUTES ?= 40
bench-all: $(COMPILED)/.made ## Write docs/performance.md anew from a run of MINUTES=40 that should have the machine to itself
	@$(PIP) install -c constraints.txt -e '.[bench]'
	@PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m bench.performance --minutes $(MINUTES)

bench-log: $(STAMP) ## Measure the log engine against the machine (ratios in one run)
	@$(BIN)/python bench/log.py

clean: ## Remove .venv, generated stubs and caches
	@rm -rf .venv build dist services/*.egg-info services/headrace/v1 .mypy_cache .ruff_cache .pytest_cache .hypothesis
