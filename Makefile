# The two commands of a newcomer are `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-fast test-real bench check clean

$(VENV)/.installed: pyproject.toml
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/fedcopl run

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n auto --dist loadfile -m 'not real'

test-fast: $(VENV)/.installed
	$(BIN)/python -m pytest -n auto --dist loadfile -m 'not slow and not real'

# Needs FEDCOPL_REAL_DATA, a folder with the real CIFAR-10; fails without it.
test-real: $(VENV)/.installed
	$(BIN)/python -m pytest -m real

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks

check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
