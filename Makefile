# Each target creates $(VENV) if needed. A new machine needs only make and Python 3.11 or later.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Tests that other versions of Python, NumPy or SciPy are most likely to break. Simulations on one network only.
PORTABILITY := $(patsubst %,tests/test_%.py,constraints network posterior law run cli) -k "not follow or ring"
# Tested versions for the Python of $(VENV), if the file exists.
PRINT_VERSION := import sys; print("{}.{}".format(*sys.version_info))
CONSTRAINTS = $(wildcard constraints/python$(shell $(BIN)/python -c '$(PRINT_VERSION)').txt)

.PHONY: demo docs wheel test test-all nightly test-portability lint bench gate accuracy picture reproduce constraints clean
.PHONY: flower kills lossy misses score score-quick r
.PRECIOUS: $(VENV)/.installed-% $(VENV)/.made

demo: $(VENV)/.installed-demo
	$(BIN)/accord demo

# Some minutes: build the pages of docs/, with their code, in build/docs/index.html. Warnings are errors. DOCS has more
# options, as in make docs DOCS="-D nb_execution_mode=off", which runs no code.
docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going --jobs 2 $(DOCS) docs build/docs

# Idle workers steal tests, because a few large tables take most of the time.
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --dist worksteal

# All tests, with XLA's default optimisation. Quick tests use less (conftest.py).
test-all: $(VENV)/.installed-test
	XLA_FLAGS=--xla_backend_optimization_level=3 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow"

# Hours: all tests, a federation, and mutations that tests must detect.
nightly: test-all flower
	$(BIN)/python tests/mutations.py

# Build wheels of both packages in dist/.
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

# At least ten minutes on an idle machine: measure all ratios and write docs/benchmarks.md. BENCH has options, as in
# make bench BENCH=--small, which measures tiny shapes and writes nothing.
bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/bench.py $(BENCH)

# Half a minute: ratios of small rounds to their floors are at most 1.5 times the usual ones. Run it on an idle machine.
gate: $(VENV)/.installed-test
	$(BIN)/python benchmarks/bench.py --gate

# Forty minutes: compare all methods on three posteriors and write docs/methods.md.
accuracy: $(VENV)/.installed-papers
	$(BIN)/python benchmarks/accuracy.py

# Five minutes: the default method on hard posteriors with known means and sds.
misses: $(VENV)/.installed-test
	$(BIN)/python benchmarks/misses.py

# A quarter of an hour: measure costs, certificates and errors of all parts, compare them with benchmarks/score.json, and
# write docs/score.md. SCORE has options, as in make score SCORE="--check --only wine".
score: $(VENV)/.installed-test
	$(BIN)/python benchmarks/score.py $(SCORE)

# Two minutes: a few rows of it. Nothing is written.
score-quick: $(VENV)/.installed-test
	$(BIN)/python benchmarks/score.py --quick $(SCORE)

# Two minutes: draw docs/error-bars.svg, the picture of the README.
picture: $(VENV)/.installed-demo $(VENV)/.installed-plot
	$(BIN)/python benchmarks/error_bars.py

# 5 to 15 minutes: a federation on this machine, with TLS and three sites. It has a separate environment, because Flower
# needs older versions of packages than the tests.
flower: .venv-flower/.installed
	.venv-flower/bin/python examples/federation/run.py

# At most half an hour each: a hundred kills over all engines, and sites in two networks with a slow, lossy link that is
# cut (needs root on Linux).
kills: $(VENV)/.installed-test
	$(BIN)/python tests/kills.py

lossy: $(VENV)/.installed-test .venv-flower/.installed
	@set -e; for study in silo cut rejoin; do echo "$$study"; $(BIN)/python tests/two_networks.py $$study; done
	.venv-flower/bin/python tests/two_networks.py flower

# Install R for the tests of sites with R, which are skipped without it. It needs apt-get and root.
r:
	@if command -v Rscript >/dev/null && Rscript -e 'library(jsonlite); library(openssl)' >/dev/null 2>&1; then \
	  echo "R is installed"; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends r-base-core r-cran-jsonlite r-cran-openssl; \
	else echo "no apt-get or no root: the tests of sites with R are skipped"; fi

.venv-flower/.installed: pyproject.toml
	$(MAKE) VENV=.venv-flower .venv-flower/.made
	.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[flower]"
	@touch $@

# Ten minutes: reproduce the papers' figures at small size, with a page in reproduced/report.html. DATA is a folder with
# mnist.npz and covtype.npz, which are downloaded without it.
reproduce: $(VENV)/.installed-papers
	$(BIN)/accord reproduce all $(if $(DATA),--data $(DATA))
	$(BIN)/accord report

# Write the newest versions that pyproject.toml allows on this Python, in a new $(VENV). Run the tests there before you
# commit them.
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

# Each extra has a stamp, so that pip runs only for new extras and for changes of a pyproject.toml or of constraints. The
# environment's stamp comes last, so that an incomplete environment is created again. "papers" is not an extra but both
# packages. The extras in WITH_PAPERS install both.
WITH_PAPERS = bench dev docs papers test
$(VENV)/.installed-%: pyproject.toml papers/pyproject.toml $(wildcard constraints/*.txt) | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS:%=--constraint %) \
	  --editable ".$(if $(filter-out papers,$*),[$*])" $(if $(filter $(WITH_PAPERS),$*),--editable ./papers)
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "accord needs Python 3.11 or later, $(PYTHON) is: $$($(PYTHON) --version 2>&1)" >&2; \
	  echo "Choose another one, as in: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
