# `make run` and `make test` do all the set-up on a machine with Python 3.11 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: run test test-all quick lint types tests docs faults experiments benchmark format clean

run: .venv/installed
	$(BIN)/gfdyn escape --out results

# All but tests marked slow, each of which has others of its kind; and these as well
test: lint types tests
test-all: WHICH :=
test-all: test

# Before each commit: what compiles little
QUICK := tests/house tests/data tests/losses tests/kinks/test_regime.py \
  tests/solvers/test_first_time.py tests/run/test_results.py tests/sweeps/test_sweep_specs.py
quick: lint types
	$(CACHE) XLA_FLAGS="$(PLAIN)" $(BIN)/pytest -q -n 2 --dist loadfile $(QUICK)

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-test
	$(BIN)/pyright

# Tests mostly compile: without the optimisations, which so small programs do not repay.
# A jaxlib that knows one of the flags no more stops at it; then there are fewer.
PLAIN := --xla_backend_optimization_level=0
FAST := $(PLAIN) --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 \
  --xla_disable_hlo_passes=hlo-verifier,simplify-while-loops,while-loop-invariant-code-motion

# Many programs are compiled more than once, in other files, processes or runs.
CACHE := JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.jax_cache \
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

WITH_FLAGS = flags="$(FAST)"; \
  XLA_FLAGS="$$flags" $(BIN)/python -c "import jax; jax.devices()" 2> /dev/null || flags="$(PLAIN)"; \
  $(CACHE) XLA_FLAGS="$$flags"

WHICH := -m "not slow"
tests: .venv/installed-test
	$(WITH_FLAGS) $(BIN)/pytest $(WHICH) -n 2 --dist loadfile --no-loadscope-reorder

# The site, into site/; to look at it: .venv/bin/python -m http.server --directory site
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The table of faults, each row as often as it says: benchmarks/faults.json, docs/reliability.md
faults: .venv/installed-test
	$(WITH_FLAGS) $(BIN)/python tests/faults

# The figures and tables of the papers, and our sweep, into results/, or some of them:
# make experiments-bantzis; SIZE=--smoke for a trial, which mostly compiles.
EXPERIMENTS := bantzis timor le_jegelka galanti sweep

.PHONY: $(EXPERIMENTS:%=experiments-%)
experiments: $(EXPERIMENTS:%=experiments-%)

$(EXPERIMENTS:%=experiments-%): experiments-%: .venv/installed
	for module in $(subst /,.,$(patsubst %.py,%,$(wildcard experiments/$*/[!_]*.py))); do \
	  $(if $(SIZE),XLA_FLAGS=$(PLAIN)) $(BIN)/python -m $$module $(SIZE) || exit 1; done

# What the pages of the papers show of them: claims and figures at full size, in hours. The
# commit is read first, as what is written changes the tree.
MEASURED := $(patsubst docs/measured/%/claims.json,%,$(wildcard docs/measured/*/*/claims.json))

.PHONY: measured
measured: .venv/installed
	commit=$$(git describe --always --dirty); for name in $(MEASURED); do \
	  made=$$(PYTHONPATH=docs/hooks $(BIN)/python -c "import stamps; print(stamps.module('$$name'))"); \
	  $(BIN)/python -m $$made --out docs/measured/$$name || exit 1; \
	  echo $$commit > docs/measured/$$name/commit.txt; done

# Notebooks, stored with what they print and draw
.PHONY: notebooks
notebooks: .venv/installed-test
	$(BIN)/python notebooks/run.py

benchmark: .venv/installed-benchmark
	$(BIN)/python benchmarks/work_precision.py
	$(BIN)/python benchmarks/digits.py
	$(BIN)/python benchmarks/sgd_step.py
	$(BIN)/python benchmarks/sweeps.py
	$(BIN)/python benchmarks/plateaus.py
	$(BIN)/python benchmarks/chains.py
	$(BIN)/python benchmarks/first_day.py

format: .venv/installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv results site .jax_cache .pytest_cache .ruff_cache

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-test: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test,docs]"
	touch .venv/installed .venv/installed-docs $@

.venv/installed-docs: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	touch .venv/installed $@

.venv/installed-benchmark: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[benchmark]"
	touch .venv/installed $@
