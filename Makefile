# Each target sets up $(VENV) by itself; a fresh machine needs only make and Python 3.11 or later.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Tests that another Python, NumPy or SciPy is most likely to break, of simulations against laws those on one network.
PORTABILITY := $(patsubst %,tests/test_%.py,constraints network posterior law run cli) -k "not follow or ring"
# Versions that were tested together on the Python of $(VENV), where there are such; known once $(VENV) is made.
PRINT_VERSION := import sys; print("{}.{}".format(*sys.version_info))
CONSTRAINTS = $(wildcard constraints/python$(shell $(BIN)/python -c '$(PRINT_VERSION)').txt)

.PHONY: demo docs wheel test test-all nightly test-portability lint bench gate accuracy picture reproduce constraints clean
.PHONY: flower kills lossy misses
.PRECIOUS: $(VENV)/.installed-% $(VENV)/.made

demo: $(VENV)/.installed-demo
	$(BIN)/accord demo

# Some minutes: the pages of docs/, which run their own code, in build/docs/index.html; warnings are errors. DOCS has more
# options, as in make docs DOCS="-D nb_execution_mode=off", which runs nothing.
docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going --jobs 2 $(DOCS) docs build/docs

# Idle workers take tests from busy ones: most of the time goes to a few large tables.
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Compiled as users' programs are, where the quick tests take less effort (tests/conftest.py).
test-all: $(VENV)/.installed-test
	XLA_FLAGS=--xla_backend_optimization_level=3 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow"

# Hours: all tests, also those that make test leaves out, a federation, and the seeded faults that tests must catch.
nightly: test-all flower
	$(BIN)/python tests/mutations.py

# The packages as they are published, in dist/.
wheel: $(VENV)/.made
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . ./papers

test-portability: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --dist worksteal -x $(PORTABILITY)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Ten minutes or more on an idle machine: all ratios of docs/benchmarks.md, which it writes. BENCH has options, as in
# make bench BENCH=--small, which measures tiny shapes and writes nothing.
bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/bench.py $(BENCH)

# Half a minute: small rounds over their floors take at most 1.5 times their usual ratios. Run it alone, because work
# beside it is measured too.
gate: $(VENV)/.installed-test
	$(BIN)/python benchmarks/bench.py --gate

# Forty minutes: all methods on three posteriors, written to docs/methods.md.
accuracy: $(VENV)/.installed-papers
	$(BIN)/python benchmarks/accuracy.py

# Five minutes: the default method on posteriors of known means and sds.
misses: $(VENV)/.installed-test
	$(BIN)/python benchmarks/misses.py

# Two minutes: docs/error-bars.svg, the picture of the README.
picture: $(VENV)/.installed-demo $(VENV)/.installed-plot
	$(BIN)/python benchmarks/error_bars.py

# Five minutes: a federation on this machine, with TLS, three sites and their policies, in an environment of its own:
# Flower asks for older versions than those that the tests run with.
flower: .venv-flower/.installed
	.venv-flower/bin/python examples/federation/run.py

# Half an hour at most each: a hundred kills over all engines, and sites in two networks with a slow link between them
# that loses packets and is cut (root on Linux).
kills: $(VENV)/.installed-test
	$(BIN)/python tests/kills.py

lossy: $(VENV)/.installed-test .venv-flower/.installed
	@set -e; for study in silo cut rejoin; do echo "$$study"; $(BIN)/python tests/two_networks.py $$study; done
	.venv-flower/bin/python tests/two_networks.py flower

.venv-flower/.installed: pyproject.toml
	$(MAKE) VENV=.venv-flower .venv-flower/.made
	.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[flower]"
	@touch $@

# Ten minutes: figures of the papers again, small, gathered in reproduced/report.html; DATA is a folder of mnist.npz and
# covtype.npz, which are fetched where it is not given.
reproduce: $(VENV)/.installed-papers
	$(BIN)/accord reproduce all $(if $(DATA),--data $(DATA))
	$(BIN)/accord report

# The newest versions that pyproject.toml allows on this Python, in place of those that were tested together so far, in
# $(VENV) made anew: run the tests there before they are kept.
constraints:
	rm -rf $(VENV)
	$(MAKE) $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test,dev]" --editable ./papers
	@version=$$($(BIN)/python -c '$(PRINT_VERSION)') && \
	{ echo "# Versions that were tested together on Python $$version; make constraints renews them." && \
	  $(BIN)/python -m pip freeze --exclude-editable; } > $(VENV)/constraints.txt && \
	mkdir -p constraints && mv $(VENV)/constraints.txt constraints/python$$version.txt
	@touch $(VENV)/.installed-test $(VENV)/.installed-dev

clean:
	rm -rf $(VENV) docs/api/generated .cache .mypy_cache .pytest_cache .ruff_cache build dist

# A stamp for each extra: going from demo to test adds what test lacks, and only a change of a pyproject.toml or of the
# constraints runs pip again. The environment's own stamp comes last, so that one half made is made again. "papers" is
# no extra but both packages; what tests, lints, documents or measures both installs both.
WITH_PAPERS = bench dev docs papers test
$(VENV)/.installed-%: pyproject.toml papers/pyproject.toml $(wildcard constraints/*.txt) | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS:%=--constraint %) \
	  --editable ".$(if $(filter-out papers,$*),[$*])" $(if $(filter $(WITH_PAPERS),$*),--editable ./papers)
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "accord needs Python 3.11 or later; $(PYTHON) says: $$($(PYTHON) --version 2>&1)" >&2; \
	  echo "Name another one, as in: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
