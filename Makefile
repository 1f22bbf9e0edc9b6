# The doors of this repository. Everything runs in its own virtual environment, .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-dev
WITH_CLIENTS := $(VENV)/.installed-clients
WITH_ATHERIS := $(VENV)/.installed-fuzz
WITH_PEERS := $(VENV)/.installed-bench
CLIENTS ?= 4096
ROUNDS ?= 3
WORKERS ?= 2
SECONDS ?= 300
MODES ?= READ WRITE
SEED ?=

.PHONY: help run demo test test-timed test-clients test-engines test-unit check format bench burst chaos fuzz clean

help:  ## What there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# Installed again when the dependencies change; pip is quiet unless it fails. Where Debian's
# python3-venv was missing an environment without pip is left: it is made again.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# Of their own, so that `make run` stays quick.
$(VENV)/.installed-%: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable '.[dev,$*]'
	@touch $@

run: $(INSTALLED)  ## Envoy, the sidecar and four simulated engines; Ctrl-C stops all
	@$(BIN)/pd-sidecar up --sim 2P2D

demo: $(INSTALLED)  ## The same, with a few chat requests and their receipts; ends by itself
	@$(BIN)/pd-sidecar demo

test: $(INSTALLED)  ## The tests, with a real Envoy (some minutes)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not timed and not vllm" --ignore tests/clients

test-timed: $(INSTALLED)  ## Those that promise times, one at a time (some minutes more)
	$(BIN)/python -m pytest -m "timed and not vllm" --ignore tests/clients

test-engines: $(INSTALLED)  ## Real vLLM engines on CPUs (3 GB of wheels once, kept in ENGINES_HOME; minutes)
	$(BIN)/python -m pytest -m vllm tests/engines

test-clients: $(WITH_CLIENTS)  ## Clients of others, unmodified: openai, anthropic, LangChain, lm_eval, ...
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/clients

test-unit: $(INSTALLED)  ## The pure packages alone (seconds, no event loop)
	$(BIN)/python -m pytest tests/routing tests/wire tests/exchange tests/xds tests/test_config.py

check: $(INSTALLED)  ## Format, lint, types, and which package may import which
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)  ## Format and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: ROUNDS = 5
bench: SECONDS = 1.5
bench: $(WITH_PEERS)  ## Beside vllm-router, plain Envoy, ...: ROUNDS, SECONDS a load, PARTS, ONLY, WRITE=1, STRICT=1
	$(BIN)/python -m tests.bench.bench --rounds $(ROUNDS) --seconds $(SECONDS) $(if $(PARTS),--parts $(PARTS)) \
	  $(if $(ONLY),--only $(ONLY)) $(if $(WRITE),--write) $(if $(STRICT),--strict)

burst: $(INSTALLED)  ## CLIENTS connections at once, ROUNDS times
	$(BIN)/python -m tests.bench.burst --clients $(CLIENTS) --rounds $(ROUNDS) --workers $(WORKERS)

chaos: $(INSTALLED)  ## Everything is killed and broken under load, SECONDS for each of MODES (SEED repeats)
	$(BIN)/python -m tests.chaos.chaos --seconds $(SECONDS) --modes $(MODES) $(if $(SEED),--seed $(SEED))

fuzz: $(WITH_ATHERIS)  ## Random bytes at every codec, led by coverage; SECONDS of search
	@$(BIN)/python -m tests.fuzz.fuzz --seconds $(SECONDS)

clean:  ## Remove the virtual environment and the caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
