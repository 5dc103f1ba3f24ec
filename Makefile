# Every target sets up what it needs: a virtual environment in .venv, made once and again only when the dependencies
# or the C++ sources change. Python code is used in place.
#
#   make demo    start the server with the bundled model, chat with it once, stop
#   make serve   start the server and leave it running        (ARGS="--port 9000" passes flags on)
#   make test    linters, types, the whole CPU test suite     (JOBS=4 sets the test processes)
#   make lint    linters and types only
#   make venv    the environment only
#   make clean   remove everything that was made

PYTHON ?= python3
JOBS ?= 2
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.installed
TORCH := torch==2.13.0

.PHONY: demo serve test lint venv clean
.DEFAULT_GOAL := demo

demo: venv
	$(BIN)/python -m tamis.cli.demo $(ARGS)

serve: venv
	$(BIN)/tamis serve $(ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

venv: $(STAMP)

$(STAMP): pyproject.toml CMakeLists.txt $(wildcard csrc/cpu/*)
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null || { \
	  echo "Tamis needs Python 3.11 or 3.12, and '$(PYTHON)' is not one." \
	       "Name another: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing Tamis and its dependencies into .venv (minutes the first time)."
	$(BIN)/python -m pip install --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --disable-pip-version-check --editable ".[test]"
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find tamis tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
