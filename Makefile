# Start with `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Without Chromium, `browser-notice` prints that the tests of pages in a browser are left out.
NO_BROWSER := $(if $(shell command -v chromium),,and not browser)

# Tests start many processes, and each of them would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=15 --durations-min=1

.PHONY: demo demo-photos test test-install test-fast test-real test-gpu mutants bench bench-quick docs release-check check clean browser-notice

$(VENV)/.installed: pyproject.toml experiments/pyproject.toml
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e . -e experiments
	touch $@

# For developers: test tools and all extras.
$(VENV)/.for-developers: $(VENV)/.installed
	$(PIP) -e '.[dev]' -e experiments
	touch $@

demo: $(VENV)/.installed
	$(BIN)/fedcopl run

# Downloads CIFAR-10 and OpenAI's ViT-B/32 (770 MB) once; without a network it prints what is missing.
demo-photos: $(VENV)/.installed
	@$(BIN)/python -c 'import huggingface_hub' 2> /dev/null || $(PIP) --retries 0 --timeout 5 -e '.[hub]' 2> /dev/null || true
	@$(BIN)/python tools/demo_photos.py

# One worker more than cores, because some tests wait for processes; with two more the tests take longer.
test: WORKERS = $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 1)')
test: $(VENV)/.for-developers browser-notice
	$(PYTEST) -m 'not real and not gpu $(NO_BROWSER)'

# Wheels in a fresh environment, without extras, with the newest dependencies, as users install them. Part of `test`.
test-install: $(VENV)/.for-developers
	$(BIN)/python -m pytest tests/test_plain_install.py

# Without complete runs, full-size models and a browser.
test-fast: WORKERS = auto
test-fast: $(VENV)/.for-developers
	$(PYTEST) -m 'not slow and not browser and not real and not gpu'

browser-notice:
	@$(if $(NO_BROWSER),echo 'chromium is not installed: the tests of the pages in a browser are LEFT OUT (apt-get install chromium)',true)

# Needs FEDCOPL_REAL_DATA, a folder with the real CIFAR-10, and FEDCOPL_REAL_MODELS, one with a folder for each model;
# fails without them. Zero-shot accuracy must equal the paper's within 0.3 points before trained numbers are compared.
REAL := FEDCOPL_REAL_DATA should name a folder with the real CIFAR-10 (fedcopl data get cifar10 FOLDER fetches it), \
	FEDCOPL_REAL_MODELS one with a folder ViT-B-32, ViT-B-16 or photo-clip
test-real: $(VENV)/.for-developers
	@test -n "$$FEDCOPL_REAL_DATA" -a -n "$$FEDCOPL_REAL_MODELS" || { echo '$(REAL)'; exit 2; }
	$(BIN)/python -m pytest -m real

# Compares results on a GPU with those on the CPU; fails without a GPU.
test-gpu: $(VENV)/.for-developers
	$(BIN)/python -m pytest -q -m gpu

# Applies each fault of tools/mutants.toml, which a fast test must detect; PART=1/4 applies a quarter of them.
PART ?= 1/1
mutants: $(VENV)/.for-developers
	$(BIN)/python tools/mutants.py --part $(PART)

# For an idle machine; on a busy one it prints a warning instead of numbers.
bench: $(VENV)/.for-developers
	$(BIN)/python -m benchmarks

bench-quick: $(VENV)/.for-developers
	$(BIN)/python -m benchmarks quick

# The documents as a site in build/site, which a browser opens from the folder, without a network.
docs: $(VENV)/.for-developers
	$(BIN)/python tools/docs_site.py
	@echo 'build/site/index.html'

# Installs wheel and sdist, each into a fresh environment, and runs them.
release-check: $(VENV)/.for-developers
	$(BIN)/python tools/release_check.py

check: $(VENV)/.for-developers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
