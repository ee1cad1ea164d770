# Sets FlashScope up in .venv, runs it and tests it. Each target is quick once the set-up is done.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install --constraint constraints.txt

# Two at a time: the tests of one file stay together, and software Vulkan takes what cores there are.
SIDE_BY_SIDE := --numprocesses 2 --dist loadfile

# Mesa and Qt complain without a private runtime folder.
RUNTIME := $(CURDIR)/$(VENV)/runtime
export XDG_RUNTIME_DIR ?= $(RUNTIME)

.PHONY: setup system run test test-all test-processors test-peers

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
	$(BIN)/pytest $(SIDE_BY_SIDE)

# Everything of `make test`, with the wide nets and the campaigns.
test-all: setup
	FLASHSCOPE_LONG=1 $(BIN)/pytest $(SIDE_BY_SIDE)

# What goes by the processor, on processors that are imposed: three sizes of L2, and 1, 2 and 16 cores.
test-processors: setup
	@for l2 in 256 512 2048; do for cores in 1 2 16; do \
		echo "L2 $$l2 KiB, $$cores cores"; \
		$(BIN)/pytest -q $(SIDE_BY_SIDE) --l2-kib $$l2 --cores $$cores \
			tests/app/plan tests/app/window/setup tests/engine/devices tests/engine/kernels/test_cpu_kernels.py \
			tests/engine/kernels/cpu_flash tests/engine/layers tests/engine/session || exit 1; \
	done; done

# The kernels of other libraries against those libraries themselves: a download of some hundred MB.
test-peers: setup
	$(PIP) --no-build-isolation --editable '.[test,torch]'
	$(BIN)/pytest $(SIDE_BY_SIDE) tests/engine/kernels/peers
