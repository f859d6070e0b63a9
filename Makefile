# `make demo` trains a small model; `make test` runs the tests; `make help` lists the rest.
#
#   PYTHON   the interpreter of the environment, 3.10 or newer:   make test PYTHON=python3.12
#   TORCH    what pip is asked for, instead of the pinned torch:   make demo TORCH=torch

PYTHON ?= python3
PINNED_TORCH := $(shell grep '^torch==' constraints.txt)
TORCH ?= $(PINNED_TORCH)
# Tests with processes wait now and then, so there is one worker more than cores; the others only compute. Each
# worker and its warm process hold torch in memory: more than 16 cores are not used.
CORES := $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 16 ? cores : 16)))
FAST_WORKERS := $(or $(WORKERS),$(CORES))
WORKERS ?= $(shell expr $(CORES) + 1)
# In order and one at a time: tests with processes come first, and short ones are left to share out at the end. With
# larger chunks pytest-xdist hands a worker one after each short test, until one has most of the long ones.
DEAL := --dist load --maxschedchunk 1

# Compiled files are kept, and out of the tree: without them each of hundreds of processes compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/pycache

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(PYTHON) scripts/install.py $(BIN)/python

# The environment is built anew when the interpreter or torch changes, and brought up to date when these files change.
KEY := $(shell { $(PYTHON) --version; echo '$(TORCH)'; } 2>&1 | cksum | cut -d ' ' -f 1)
BASE := $(VENV)/.torch-$(KEY)
# With another torch than the pinned one, all other pins still hold.
CONSTRAINTS := $(VENV)/constraints.txt
WRITE_CONSTRAINTS := $(if $(filter $(PINNED_TORCH),$(TORCH)),cp constraints.txt,grep -v '^torch==' constraints.txt >) $(CONSTRAINTS)
DECLARED := pyproject.toml constraints.txt

# What breaks runs, disks and files in hundreds of ways; docs/campaigns.md says what each does and how to repeat a case.
#   OPTIONS   passed on to the campaign, or to pytest:   make campaign-kill OPTIONS='--seed 7 --only ddp'
CAMPAIGNS := $(addprefix campaign-,kill torchrun elastic files disk corruption s3 layouts search streams shards)
OPTIONS ?=

.DELETE_ON_ERROR:
.PHONY: help demo docs test test-fast test-times slow check bench bench-search release clean compat-clients campaigns $(CAMPAIGNS) gpu

help:
	@echo 'make demo    train a small model on handwritten digits (a minute, once installed)'
	@echo 'make test    run every test but the slow ones (half an hour on two cores)'
	@echo 'make test-fast   run those that start no process and open no port: before a commit (ten minutes)'
	@echo 'make test-times  as make test, and print where the time went'
	@echo 'make slow    run the slow tests: many processes, or minutes'
	@echo 'make campaigns   kill runs, tear files, fill disks, fail a store: all of campaign-kill, campaign-torchrun, campaign-elastic, campaign-files,'
	@echo '                 campaign-disk, campaign-corruption, campaign-s3, campaign-layouts, campaign-search, campaign-streams, campaign-shards (two hours; each also alone)'
	@echo 'make gpu     run everything that needs a GPU, and write the results into docs/gpu.md; OPTIONS=--pretend runs it on the CPU'
	@echo 'make compat-clients   run packages built on Lightning with Lightning and with lightlib (minutes to install)'
	@echo 'make check   formatting, lint, types, architecture, pinned versions, subjects of commits'
	@echo 'make docs    build the site into docs/_build/html; a warning or a dead link is an error (a minute, once installed)'
	@echo 'make bench   measure what a step costs over a plain loop (ten minutes)'
	@echo 'make bench-search  measure what a trial of a search costs over its objective, and in its storage (ten minutes)'
	@echo 'make release VERSION=0.2.0   check, build, install and tag a release; with DRY=1 all but the tag (RELEASING.md)'
	@echo 'make clean   remove the environment and what the tools left'

demo: $(VENV)/.examples
	@$(BIN)/python examples/digits.py

test: $(VENV)/.test
	@echo 'Running every test but the slow ones with $(WORKERS) workers. The first dots come once all files are imported.'
	@$(BIN)/python -m pytest -n $(WORKERS) $(DEAL) $(OPTIONS)

test-fast: $(VENV)/.test
	@echo 'Running the tests that start no process and open no port with $(FAST_WORKERS) workers.'
	@$(BIN)/python -m pytest -n $(FAST_WORKERS) $(DEAL) -m 'not slow and not processes' $(OPTIONS)

test-times: $(VENV)/.test
	@PYTHONPATH=. $(BIN)/python scripts/test_times.py -n $(WORKERS) $(DEAL) $(OPTIONS)

slow: $(VENV)/.test
	@$(BIN)/python -m pytest -m slow $(OPTIONS)

campaigns: $(CAMPAIGNS)

$(CAMPAIGNS): campaign-%: $(VENV)/.test
	@$(BIN)/python -m tests.campaigns.campaign_$* $(OPTIONS)

# On a machine whose driver needs another torch than the pinned one: make gpu TORCH=torch
gpu: $(VENV)/.test
	@$(BIN)/python -m tests.gpu $(OPTIONS)

# Into environments of their own: the packages bring the real Lightning, and some an older numpy.
compat-clients: $(VENV)/.test
	@$(BIN)/python scripts/compat_clients.py $(VENV)/clients $(OPTIONS)

check: $(VENV)/.dev
	@$(BIN)/ruff format --check --quiet . || { echo 'Fix: $(BIN)/ruff format .'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/python scripts/constraints.py check
	@$(BIN)/python scripts/commit_subjects.py
	@$(BIN)/python -m pytest -q tests/architecture

docs: $(VENV)/.docs
	@PYTHONPATH=. $(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet --jobs auto docs docs/_build/html
	@$(BIN)/python scripts/site_links.py docs/_build/html

bench: $(VENV)/.examples
	@$(BIN)/python -m benchmarks

bench-search: $(VENV)/.test
	@$(BIN)/python -m benchmarks --only search ledger

release: $(VENV)/.test
	@$(BIN)/python scripts/release.py check $(VERSION) $(if $(DRY),--dry-run) $(OPTIONS)

clean:
	@rm -rf $(VENV) build dist docs/_build docs/reference .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and alone: asked for by a range, pip would fetch the newest release and its GPU libraries.
$(BASE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "lightlib needs Python 3.10 or newer, this is " \
		+ sys.version.split()[0] + ". Fix: make PYTHON=python3.12 ...")'
	@echo 'Making $(VENV) with $(TORCH) ...'
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(WRITE_CONSTRAINTS)
	@$(INSTALL) -c $(CONSTRAINTS) $(TORCH)
	@touch $@

$(VENV)/.examples: EXTRAS := examples
$(VENV)/.test: EXTRAS := examples,test
$(VENV)/.docs: EXTRAS := docs
$(VENV)/.dev: EXTRAS := examples,test,dev
$(VENV)/.examples $(VENV)/.test $(VENV)/.docs $(VENV)/.dev: $(BASE) $(DECLARED)
	@echo 'Installing lightlib[$(EXTRAS)] into $(VENV) ...'
	@$(WRITE_CONSTRAINTS)
	@$(INSTALL) -c $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	@touch $@
