# Every target works on a fresh machine with Python 3.11 or newer, make and git:
# what a target needs is set up first, and again whenever pyproject.toml or constraints.txt change.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The first interpreter on the path that is new enough; `make PYTHON=/path/to/python setup` overrides it.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DOCS := $(VENV)/.ready-docs
# By the environment too, so that what builds the package is pinned; newer versions of pip read it from the second name.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
# Folders of tests in memory where it is roomy: ledgers and jobs wait for the disk at every commit, half of the time of many.
TEST_FOLDERS := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8000000 { print $$6 }')
# Two at a time with a thread each: most tests are too small to use two cores by themselves. A file stays with one worker,
# which makes what its tests share once; in order of their paths, the many short files of unit tests even it out at last.
PYTEST := $(if $(TEST_FOLDERS),TMPDIR=$(TEST_FOLDERS)) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
BENCHMARKS := startup privatize words jobs split_overhead split_lm wire attacks snd_cost embed_service gateway

.PHONY: help setup demo test test-all lint format bench docs clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: $(READY)  ## make .venv with the pinned versions, the embedded model and the tools

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'make: no Python 3.11 or newer found; install one or run: make PYTHON=/path/to/python setup' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo 'make: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Setting up $(VENV); the first time this takes a few minutes.'
	$(PIP) -e '.[all,dev]'
	@touch $@

$(READY_DOCS): $(READY)
	$(PIP) -e '.[docs]'
	@touch $@

demo: $(READY)  ## vendor, customer, attack and report on this machine, with the embedded model and made-up texts
	$(BIN)/cutlayer demo

test: $(READY)  ## the tests, without those marked slow
	$(PYTEST) -m 'not slow'

test-all: $(READY)  ## all tests
	$(PYTEST)

lint: $(READY)  ## style, types and the walls between rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## rewrite files in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## all benchmarks, one after the other; results in benchmarks/results/
	@for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python -m "benchmarks.$$name"; done

docs: $(READY_DOCS)  ## the documentation as a web site in site/
	$(BIN)/mkdocs build --strict

clean:  ## remove everything that the other targets made
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
