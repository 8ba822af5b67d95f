# Everything on a fresh machine: `make run`, `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: run test lint types unit rest long alone drill chromium bench results dist matrix schemas site clean

run: $(VENV)/.ready
	$(BIN)/rayfl quickstart

test: lint types unit rest

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

unit: $(VENV)/.ready chromium
	$(BIN)/pytest --numprocesses 3 --dist worksteal

# Notebooks, the site, the wheel and a package beside it.
rest: $(VENV)/.ready chromium
	$(BIN)/pytest -m rest --numprocesses 2 --dist worksteal

# What costs many seconds of processor: drills, the conformance table's further rows and most of those on
# Ray, MLflow's pages in a browser.
long: $(VENV)/.ready chromium
	$(BIN)/pytest -m 'long and not alone' --numprocesses 2 --dist worksteal

# Drills that cannot share the machine with other tests, and those of many minutes.
alone: $(VENV)/.ready
	$(BIN)/pytest -m alone

# Kills processes until a thousand kills have landed in all, and writes it down; stopped, it goes on where it was.
LANDED ?= 1000
drill: $(VENV)/.ready
	$(BIN)/python -m tests.reliability.kills --landed $(LANDED); status=$$?; $(BIN)/python -m tests.reliability.page; exit $$status

# Tests look at pages with a real browser.
chromium:
	@command -v chromium >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; }

bench: $(VENV)/.ready
	$(BIN)/python benchmarks/speed.py --write

# What the queue results/queue.yaml still lacks, at low priority and one core a run; then the pages. It takes
# hours (`rayfl queue --state` says how many); stopped, it goes on where it was.
results: $(VENV)/.ready
	nice -n 15 $(BIN)/rayfl queue; status=$$?; $(BIN)/rayfl report --recorded -o docs; exit $$status

# Wheel and sdist, and the wheel at work in a bare environment outside this checkout.
dist:
	PYTHON=$(PYTHON) .ci/dist

# The same with the lowest and the newest libraries that the bounds admit, on every interpreter that is here.
matrix:
	.ci/matrix

# JSON schemas beside the configurations, after a setting has changed.
schemas: $(VENV)/.ready
	$(BIN)/rayfl schema -o configs/schemas

# The documentation, in site-build/html; a warning, or a link that leads nowhere, is an error.
site: $(VENV)/.ready
	$(BIN)/python docs/site/build.py

# One environment for both commands; made again when the requirements change.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) outputs build dist site-build .mypy_cache .ruff_cache .pytest_cache .hypothesis
