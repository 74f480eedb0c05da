# make demo: the example training job on a real Slurm, from nothing.   make test: the tests.   make help: the rest.
PYTHON ?= python3
VENV := .venv
FRAMEWORKS := .venv-frameworks
RUN := $(VENV)/bin/python
DEVCLUSTER := $(RUN) -m site_configs.devcluster
PYTEST_ARGS ?=
RELEASE ?= host
CPUS := $(shell nproc)
# Workers of pytest-xdist: tests without Slurm use the CPU, those with it mostly wait.
WORKERS ?= $(shell echo $$(($(CPUS) + 1)))
WAITERS ?= $(shell echo $$((3 * $(CPUS))))

.DEFAULT_GOAL := help
.PHONY: help demo test test-rest test-all test-slurm test-packages cases coverage cluster cluster-down lint frameworks \
	bench bench-agent bench-models oracle-limits lint-types lint-imports set-up

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

demo: $(VENV)/.ready ## a real training job on a real Slurm, reported
	@$(RUN) -m site_configs.devcluster.demo

# What `make test` runs; `make test-rest` runs all else, and the property tests again with all their examples.
QUICK := not slurm and not slow and not packages or essential
REST := slow or packages or slurm and not essential or hypothesis
TESTS := $(RUN) -m tests
REST_IN := tests/slurm tests/packages tests/fuzz $(shell grep -rlE "mark\.slow|hypothesis" --include="test_*.py" tests/unit)
# No doctest is slow, and looking for them takes long.
NO_DOCTESTS := -o addopts="-ra --strict-markers --strict-config"
QUICK_IN := site_configs profiler prolog_epilog slurm_plugins gsub $(wildcard tests/*.py) tests/fuzz tests/unit tests/slurm/essential

set-up: # what all else stands on, side by side
	@$(MAKE) --no-print-directory -j2 $(VENV)/.ready prepared

test: set-up ## the tests without Slurm and the essential ones with it, in ten minutes
	@$(if $(PYTEST_ARGS),$(RUN) -m pytest $(PYTEST_ARGS),$(TESTS) -n $(WORKERS) --slurm=host -m "$(QUICK)" $(QUICK_IN))

test-rest: $(VENV)/.ready prepared ## all tests that `make test` leaves out, on the releases of Slurm in turn
	@$(TESTS) -n $(WAITERS) -m "$(REST)" --hypothesis-profile=full $(NO_DOCTESTS) $(REST_IN)

test-all: ## both
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest

test-slurm: $(VENV)/.ready prepared ## the tests on a real Slurm, all on RELEASE=host, trixie or forky
	@$(TESTS) -n $(WAITERS) -m slurm --slurm=$(RELEASE) tests/slurm

test-packages: $(VENV)/.ready prepared ## the packages, built, installed and booted
	@$(TESTS) -n 1 -m packages tests/packages

CASE ?= all
cases: $(VENV)/.ready prepared ## the inputs that failed once, CASE=A2: those of one row
	@$(RUN) -m pytest --case=$(CASE) -q tests

TIER ?= test
coverage: $(VENV)/.ready prepared ## coverage by package of what `make test` runs, in docs/testing.md; TIER=rest: of `make test-rest` and of both
	@$(RUN) -m tests.coverage_report $(TIER) $(if $(filter rest,$(TIER)),-n $(WAITERS) -m "$(REST)" \
		--hypothesis-profile=full $(NO_DOCTESTS) $(REST_IN),-n $(WORKERS) --slurm=host -m "$(QUICK)" $(QUICK_IN))

cluster: $(VENV)/.ready ## start the development cluster
	@$(DEVCLUSTER) up

cluster-down: $(VENV)/.ready ## end every development cluster; no process and no mount stays
	@$(DEVCLUSTER) down --all

bench: $(VENV)/.ready ## the figures of docs/measured.md, as ratios, measured briefly: fails beyond a limit
	@$(RUN) -m benchmarks.bench_cli --gate
	@$(RUN) -m benchmarks.submit --gate
	@$(RUN) -m benchmarks.hooks --gate
	@$(MAKE) --no-print-directory -j2 --output-sync=target bench-agent bench-models

# Side by side: the one waits nearly all the time, the other counts its own CPU time or none.
bench-agent:
	@$(RUN) -m benchmarks.agent --gate

bench-models:
	@$(RUN) -m benchmarks.classify --gate
	@$(RUN) -m benchmarks.retries --gate
	@$(RUN) -m benchmarks.speeds --gate
	@$(RUN) -m benchmarks.genie --gate

SETS ?=
oracle-limits: $(VENV)/.ready ## no job waits on a limit, is charged more or refused for what gsub makes of it, on RELEASE=host, trixie or forky
	@$(RUN) -m benchmarks.oracle_limits --slurm $(RELEASE) --sets "$(SETS)"

frameworks: $(VENV)/.ready $(FRAMEWORKS)/.ready ## real PyTorch, Lightning and Trainer stop and go on (installs 1 GB and more)
	@GSUB_FRAMEWORKS=$(CURDIR)/$(FRAMEWORKS)/bin/python $(RUN) -m pytest -q tests/unit/gsub/train/test_frameworks.py

lint: $(VENV)/.ready ## ruff, mypy strict, import-linter
	@$(VENV)/bin/ruff check .
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint-types lint-imports

lint-types:
	@$(VENV)/bin/mypy

lint-imports:
	@$(VENV)/bin/lint-imports

$(FRAMEWORKS)/.ready: tests/unit/gsub/train/frameworks.txt | $(VENV)/.ready
	@echo "making the virtual environment $(FRAMEWORKS) (once)"
	@$(PYTHON) -m venv --clear $(FRAMEWORKS)
	@$(FRAMEWORKS)/bin/python -m pip install -q --disable-pip-version-check -r tests/unit/gsub/train/frameworks.txt
	@touch $@

# What the tests need of Debian's packages: root gets it beside the virtual environment, others a line on what is missing.
.PHONY: prepared
prepared: | $(VENV)/bin/pip
	@$(PYTHON) -m tests.prepare

# A virtual environment in this directory. Debian and Ubuntu ship python3 without venv: root gets it, others a sentence.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "gsub needs Python 3.10 or newer, and $(PYTHON) is not: try make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -q update && \
		  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends python3-venv; } || \
		{ echo "Python's venv is missing here; ask root for: apt-get install python3-venv"; exit 1; }
	@echo "making the virtual environment $(VENV) (once)"
	@$(PYTHON) -m venv --clear $(VENV)

$(VENV)/.ready: pyproject.toml | $(VENV)/bin/pip
	@$(VENV)/bin/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@
