# make demo       HSFL, SplitFed V1 (with the same allocation, and as published), FL and SL on scikit-learn's digits (one to seven minutes); ends with a page
# make test       lint, types, tests
# make test-slow  what takes longer: learning on real data, faults of real processes, Ray, transformers, benchmarks' smoke runs, the page in a browser
# make docs       this documentation as a site, .site/html/index.html
# Each installs what it needs into .venv, once; it installs again when the pins or the package's metadata change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow docs browser lint clean

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "HSFL needs Python 3.11 or newer; set PYTHON=python3.12 or so")'
	$(PYTHON) -m venv $(VENV)

# Extras are for users, dependency groups (pip 25.1 or newer) for contributors.
$(VENV)/.installed-dev $(VENV)/.installed-docs $(VENV)/.installed-slow: $(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing hsfl and the group $* into $(VENV) (a few minutes the first time) ..."
	$(PIP) --upgrade 'pip>=25.1'
	$(PIP) -e . --group $*
	@touch $@

$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing hsfl[$*] into $(VENV) (a few minutes the first time) ..."
	$(PIP) -e '.[$*]'
	@touch $@

demo: $(VENV)/.installed-demo
	$(BIN)/hsfl compare demo --train-once -f hsfl -f splitfed_v1 -f splitfed_v1,allocation.policy=own -f fl -f sl --out runs/demo

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two processes of one thread each: torch's threads wait for each other, and whole files stay together.
TEST_PROCESSES ?= 2

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile

# The page's tests drive a chromium of the system; where there is none and none can be had, they are skipped.
browser: $(VENV)/.installed-slow
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
		|| echo "no chromium here: the page's browser tests are skipped"

test-slow: test browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n $(TEST_PROCESSES) --dist loadfile

# Warnings are errors.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d .site/doctrees docs .site/html
	@echo "the site is .site/html/index.html"

clean:
	rm -rf $(VENV) .site .pytest_cache .mypy_cache .ruff_cache .hypothesis
