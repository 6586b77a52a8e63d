# Two commands: `make demo` and `make test`. Both make the virtual environment when it is missing.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test lint clean

demo: $(STAMP)
	$(BIN)/pliant demo

test: $(STAMP) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks recipes
	$(BIN)/ruff format --check src tests benchmarks recipes
	$(BIN)/mypy

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "pliant needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "this Python has no venv; on Debian: apt-get install python3-venv"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade-strategy only-if-needed --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist src/*.egg-info
