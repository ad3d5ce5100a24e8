# `make run` and `make test` do all the set-up on a machine with Python 3.11 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: run test lint types tests experiments benchmark format clean

run: .venv/installed
	$(BIN)/gfdyn escape --out results

test: lint types tests

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-test
	$(BIN)/pyright

# Tests mostly compile: without the optimisations, which so small programs do not repay.
tests: .venv/installed-test
	XLA_FLAGS=--xla_backend_optimization_level=0 $(BIN)/pytest -n 2 --dist loadfile

# The figures and tables of the papers, into results/; a quarter of an hour.
experiments: .venv/installed
	for figure in fig1 fig2 fig4 fig5; do \
	  $(BIN)/python experiments/bantzis_$$figure.py --out results/bantzis_$$figure || exit 1; \
	done

benchmark: .venv/installed-benchmark
	$(BIN)/python benchmarks/work_precision.py

format: .venv/installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv results .pytest_cache .ruff_cache

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-test: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test]"
	touch .venv/installed $@

.venv/installed-benchmark: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[benchmark]"
	touch .venv/installed $@
