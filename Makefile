# Each target sets up $(VENV) by itself; a fresh machine needs only make and Python 3.11 or later.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BENCHMARKS := benchmarks/round.py benchmarks/engines.py

.PHONY: demo test test-all lint bench accuracy no-knobs splittings reproduce clean
.PRECIOUS: $(VENV)/.installed-% $(VENV)/.made

demo: $(VENV)/.installed-demo
	$(BIN)/accord demo

# Idle workers take tests from busy ones: most of the time goes to a few large tables.
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.installed-demo $(VENV)/.installed-silo
	@set -e; for script in $(BENCHMARKS); do echo "$$script"; $(BIN)/python "$$script"; done

# Minutes long: all methods on three posteriors, written to docs/methods.md.
accuracy: $(VENV)/.installed-demo $(VENV)/.installed-metrics $(VENV)/.installed-plot
	$(BIN)/python benchmarks/accuracy.py

# Minutes long: what is drawn without numbers on four data sets, beside NUTS.
no-knobs: $(VENV)/.installed-demo
	$(BIN)/python benchmarks/no_knobs.py

# Two minutes: GT-BAOAB beside other splittings, frictions and numbers of exchanges, exact and measured.
splittings: $(VENV)/.installed-demo
	$(BIN)/python benchmarks/splittings.py

# Ten minutes: figures of the papers again, small, gathered in reproduced/report.html; DATA is a folder of mnist.npz and
# covtype.npz, which are fetched where it is not given.
reproduce: $(VENV)/.installed-reproduce
	$(BIN)/accord reproduce all --small $(if $(DATA),--data $(DATA))
	$(BIN)/accord report

clean:
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache build dist

# A stamp for each extra: going from demo to test adds what test lacks, and only a change of pyproject.toml runs
# pip again. The environment's own stamp comes last, so that one half made is made again.
$(VENV)/.installed-%: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "accord needs Python 3.11 or later; $(PYTHON) says: $$($(PYTHON) --version 2>&1)" >&2; \
	  echo "Name another one, as in: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
