# Every target sets up what it needs first: a virtual environment with pinned dependencies and the compiled extensions.
# Set-up is repeated only when the lock, pyproject.toml, setup.py or a compiled source has changed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=
STAMPS := build/stamps

COMPILED := $(shell find src -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
SOURCES  := $(shell find src -name '*.py' -o -name '*.pyi' -o -name '*.toml')
CORES    := $(shell nproc)
# One more than there are cores: tests wait for processes, leases and disks as well.
WORKERS  ?= $(shell echo $$(($(CORES) + 1)))
APT      := --yes --quiet --no-install-recommends -o DPkg::Lock::Timeout=60 -o Acquire::Retries=1

# Tests start hundreds of processes: each would compile every Python source anew.
unexport PYTHONDONTWRITEBYTECODE

# Refuse an environment that was created by another Python than the requested one.
ifneq ($(origin PYTHON),file)
ifneq ($(wildcard $(BIN)/python),)
VERSION_OF := -c 'import sys; print("%d.%d" % sys.version_info[:2])'
ASKED := $(shell $(PYTHON) $(VERSION_OF) 2>&1)
FOUND := $(shell $(BIN)/python $(VERSION_OF) 2>&1)
ifneq ($(ASKED),$(FOUND))
ifeq ($(filter clean help,$(MAKECMDGOALS)),)
$(error $(VENV) was made by Python $(FOUND), PYTHON=$(PYTHON) is $(ASKED): run make clean first)
endif
endif
endif
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-debug lint bench soak docs clean browser

# Installs a lock; what pip says goes to a log, which is shown when it fails.
define install
	@echo "==> installing $$(grep -c '==' $(2)) packages for $(1)"
	@mkdir -p build $(@D) && $(BIN)/python -m pip install --disable-pip-version-check --quiet --progress-bar off --no-deps -r $(2) >build/pip.log 2>&1 \
	|| { cat build/pip.log; echo "pip could not install $(2); its output is in build/pip.log"; exit 1; }
	@touch $@
endef

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(STAMPS)/build $(STAMPS)/spark ## create .venv, install the pinned dependencies, build the extensions

demo: $(STAMPS)/build $(if $(findstring --spark,$(ARGS)),$(STAMPS)/spark) ## a plant on this machine, measured; ARGS="--spark" adds the pipeline
	@test ! -t 0 || set -m; $(BIN)/penstock demo $(ARGS) # job control: Ctrl-C reaches the demo, which ends well, not make

test: ## lint, then the whole suite
	@$(MAKE) --no-print-directory --jobs 2 lint browser # fetch Chromium while the environment is created
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --maxfail 10 $(ARGS)

test-debug: $(STAMPS)/build-debug $(STAMPS)/test browser ## the suite on extensions with bounds checks and sanitizers
	PYTHONPATH=build/debug PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:halt_on_error=1 UBSAN_OPTIONS=halt_on_error=1 \
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so.6)" \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --timeout 0 --capture sys $(ARGS)

lint: $(STAMPS)/build $(STAMPS)/test ## ruff, mypy, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The tests of the console drive Debian's Chromium. Without Chromium these tests are skipped, and print the command that
# installs it.
browser:
	@mkdir -p build
	@command -v chromium >/dev/null || test "$$(id -u)" != 0 || { echo "==> installing Chromium for the tests of the console"; \
	export DEBIAN_FRONTEND=noninteractive; timeout 300 apt-get $(APT) install chromium </dev/null >build/chromium.log 2>&1 \
	|| { timeout 60 apt-get -qq update </dev/null && timeout 300 apt-get $(APT) install chromium </dev/null; } >>build/chromium.log 2>&1 \
	|| echo "Chromium could not be installed (build/chromium.log): the tests of the console are skipped"; }

bench: $(STAMPS)/peers ## every benchmark, beside the peers it installs; ARGS="match --json" runs one
	@$(BIN)/penstock bench $(ARGS)

soak: $(STAMPS)/build $(STAMPS)/test browser ## the long and wide variants of the suite
	PENSTOCK_SOAK=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal --timeout 0 $(ARGS)

docs: $(STAMPS)/build $(STAMPS)/site ## generate the reference pages and build the site into build/site; warnings are errors
	@$(BIN)/python docs/generate.py
	@build/site-venv/bin/mkdocs build --strict --quiet
	@echo "==> build/site/index.html"

clean: ## remove everything that was built or installed here
	rm -rf $(VENV) build .hypothesis .mypy_cache .ruff_cache .import_linter_cache src/*.egg-info
	find src -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv: requirements.lock
	@echo "==> creating $(VENV); the first set-up takes two to three minutes"
	@$(PYTHON) -c '' || { echo "$(PYTHON) cannot be run; name a Python 3.11 or newer with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Penstock needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python's venv module is missing; as root: apt-get install python3-venv python3-dev"; exit 1; }
	$(call install,running and building,$<)

$(STAMPS)/build: $(STAMPS)/venv pyproject.toml setup.py $(COMPILED)
	@echo "==> building the compiled extensions"
	@$(BIN)/python setup.py --quiet build_ext --inplace --parallel $(CORES)
	@test -x $(BIN)/penstock -a $(BIN)/penstock -nt pyproject.toml || PENSTOCK_BUILT=1 $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@mkdir -p $(@D) && touch $@

$(STAMPS)/spark: requirements-spark.lock $(STAMPS)/venv
	$(call install,the Spark pipeline,$<)

$(STAMPS)/test: requirements-test.lock $(STAMPS)/spark
	$(call install,linters and tests,$<)

$(STAMPS)/peers: requirements-bench.lock $(STAMPS)/build $(STAMPS)/spark
	$(call install,the peers of the benchmarks,$<)

# A separate environment: the suite must not depend on the packages of the site generator.
$(STAMPS)/site: requirements-docs.lock
	@echo "==> installing the site generator"
	@$(PYTHON) -m venv build/site-venv
	@build/site-venv/bin/python -m pip install --disable-pip-version-check --quiet --progress-bar off -r requirements-docs.lock
	@mkdir -p $(@D) && touch $@

$(STAMPS)/build-debug: $(STAMPS)/build $(SOURCES)
	@echo "==> building the extensions with bounds checks and sanitizers into build/debug"
	@rm -rf build/debug
	@PENSTOCK_DEBUG=1 $(BIN)/python setup.py --quiet build --build-base build/debug-objects --build-lib build/debug
	@mkdir -p $(@D) && touch $@
