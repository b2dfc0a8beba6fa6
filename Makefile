# `make demo` and `make test` do all set-up themselves: a virtual environment in .venv,
# the dependencies, and a Java runtime if the machine has none.

SHELL := bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ENV := . .ci/environment $(VENV) &&

.PHONY: demo test check bench format clean

demo: $(READY)
	$(ENV) $(BIN)/python notebooks/flights_demo.py

test check: $(READY)
	$(ENV) .ci/check

bench: $(READY)
	$(ENV) $(BIN)/python benchmarks/run.py

format: $(READY)
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

$(READY): setup.cfg setup.py .ci/setup
	PYTHON="$(PYTHON)" .ci/setup $(VENV)

clean:
	rm -rf $(VENV) .venv-ci build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
