# The two commands of a newcomer are `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Pages are tested in a real browser; a machine without one is told so, not served a smaller green.
NO_BROWSER := $(if $(shell command -v chromium),,and not browser)

# Tests start many processes: each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-fast test-real bench check clean say-browser

$(VENV)/.installed: pyproject.toml experiments/pyproject.toml
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e . -e experiments
	touch $@

# What only developers need: test tools, and every extra.
$(VENV)/.for-developers: $(VENV)/.installed
	$(PIP) -e '.[dev]' -e experiments
	touch $@

demo: $(VENV)/.installed
	$(BIN)/fedcopl run

test: $(VENV)/.for-developers say-browser
	$(PYTEST) -m 'not real $(NO_BROWSER)'

# Neither whole runs, nor full-size models, nor pages in a browser.
test-fast: $(VENV)/.for-developers
	$(PYTEST) -m 'not slow and not browser and not real'

say-browser:
	@$(if $(NO_BROWSER),echo 'chromium is not installed: the tests of the pages in a browser are LEFT OUT (apt-get install chromium)',true)

# Needs FEDCOPL_REAL_DATA, a folder with the real CIFAR-10; fails without it.
test-real: $(VENV)/.for-developers
	$(BIN)/python -m pytest -m real

bench: $(VENV)/.for-developers
	$(BIN)/python -m benchmarks

check: $(VENV)/.for-developers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
