# Sets FlashScope up in .venv, runs it and tests it. Each target is quick once the set-up is done.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install --constraint constraints.txt

# Mesa and Qt complain without a private runtime folder.
RUNTIME := $(CURDIR)/$(VENV)/runtime
export XDG_RUNTIME_DIR ?= $(RUNTIME)

.PHONY: setup system run test

setup: $(INSTALLED)

system:
	@$(PYTHON) scripts/system_libraries.py

$(INSTALLED): pyproject.toml constraints.txt | system
	@echo "Setting up $(VENV), which takes a minute or two"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@mkdir -p -m 700 $(RUNTIME)
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --editable '.[test]'
	@touch $@

run: setup
	@if $(BIN)/python -m app.window.display; then \
		$(BIN)/python -m app; \
	else \
		echo "There is no display for the window: racing the four kernels on the sample tensors instead."; \
		mkdir -p reports; \
		$(BIN)/python -m app run --input resources/samples/minilm_layer2_128.npz --seconds 1 \
			--csv reports/race.csv --png reports/race.png; \
	fi

test: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest
