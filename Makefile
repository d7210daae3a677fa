# Everything a developer does, from a fresh clone with python3 (3.11 or newer) and make.

PYTHON ?= python3
BUDGET ?= 2.85GiB
STEPS ?= 4
OLDEST ?= 2.11.0
BIN := .venv/bin
INSTALLED := .venv/installed
# There are as many tests at a time as processors, up to four: although some wait, more of them take longer in all.
SIDE_BY_SIDE := --numprocesses $(shell n=$$(nproc); echo $$((n < 2 ? 2 : n < 4 ? n : 4))) --dist worksteal
# Tests start many processes: what Python has compiled stays, whatever the machine says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo test compiled hunt oldest check bench format clean

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv with the outgrow command in it

# Python compiles what it imports; to compile all that is installed would take a minute.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev,examples,integrations]'
	@touch $@

# Debian keeps the venv module's pip in a package of its own; virtualenv, where it is, does as well.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "outgrow needs Python 3.11 or newer: make PYTHON=python3.12 install" >&2; exit 1; }
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || $(PYTHON) -m virtualenv --quiet .venv 2>/dev/null || \
		{ rm -rf .venv; echo "python3 cannot make a virtual environment: install python3-venv or virtualenv" >&2; exit 1; }

demo: install ## train the 3D U-Net on a whole 192^3 brain in a third of its memory
	$(BIN)/outgrow train examples/brain_unet3d.py:workload --set size=192 \
		--memory-budget $(BUDGET) --steps $(STEPS) --report demo.html

test: check compiled ## check, and run the tests
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

compiled: install ## compile what searches for plans, and what tests import, so that no test waits for it
	@$(BIN)/outgrow plan examples/brain_unet3d.py:workload --set size=64 --machine xeon-2core-disk \
		--memory-budget 150MiB >/dev/null
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null || true # the tests tell

hunt: install ## run the tests of generated graphs with new examples
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m hypothesis --hypothesis-profile new

oldest: ## run the tests that capture and run steps with the oldest torch that is supported, in .venv-oldest
	@$(PYTHON) -m venv .venv-oldest >/dev/null 2>&1 || $(PYTHON) -m virtualenv --quiet .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --editable '.[dev,examples]' torch==$(OLDEST)
	.venv-oldest/bin/python -m pytest $(SIDE_BY_SIDE) tests/bitwise tests/runtime tests/frontends

check: install ## lint, format, types and layers, without running anything
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: install ## measure the main job and write benchmarks/results
	$(BIN)/python benchmarks/main_job.py

format: install ## put the code into its format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove what was made
	rm -rf .venv .venv-oldest .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage demo.html
