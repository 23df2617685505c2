# make run and make test do everything on a fresh machine; see README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RECIPE ?= quickstart
DOCKER ?= docker
ARGS ?=

.PHONY: run test test-slow lint format bench gpu-check image-cpu image-gpu clean

run: $(VENV)/.installed
	$(BIN)/python -m deploycnn.pipeline run $(RECIPE) $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev
	for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script $(ARGS) || exit 1; done

gpu-check: $(VENV)/.installed-dev
	$(BIN)/python -m deploycnn.pipeline gpu-check $(ARGS)

# One command to build an image, docs/docker.md for the rest. ARGS='--build-arg PYTHON=3.13'
image-cpu image-gpu: image-%:
	$(DOCKER) build --file docker/$*.Dockerfile --tag deploycnn:$* $(ARGS) .

# Nothing is reinstalled until what is installed from changes.
$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "deploycnn needs Python 3.11 to 3.13; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[openvino]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[openvino,tvm-rpc,mlperf,qat,keras,tensorflow,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
