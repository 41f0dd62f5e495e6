PYTHON ?= python3
# loadfile: the tests of a file run in their order, in one process
PYTEST_ARGS ?= -n 2 --dist loadfile

BIN := .venv/bin
# Names this checkout, so that a .venv that was copied or moved with its folder is built anew.
STAMP := .venv/.installed-$(shell pwd | cksum | cut -d' ' -f1)

ifeq ($(ONES_ALL),1)
SLOW := -m "not soak"
endif

# for test-random: how many rounds, and the seed of a round that is to be repeated
ROUNDS ?= 3
SEED ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-random test-soak fmt bench docs release-check

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(STAMP)  ## create .venv and install everything into it (minutes the first time)

# The stamp goes before the work and comes back after it: no stamp means that an installation broke
# half way, and the next one starts from an empty .venv.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	    { echo "error: '$(PYTHON)' is not Python 3.11 or later; name one that is: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Installing ONES and what it needs into .venv; the first time this takes minutes."
	@test -e $@ && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@rm -f .venv/.installed-*
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@touch $@

demo: setup  ## train real jobs on this machine under the scheduler
	$(BIN)/ones demo

test test-random test-soak: export OPENBLAS_NUM_THREADS = 1
test test-random test-soak: export OMP_NUM_THREADS = 1
test test-soak: export PYTHONHASHSEED = 0
test: setup  ## format, lint, types, layers, tests; ONES_ALL=1 adds the long ones
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest $(SLOW) $(PYTEST_ARGS)

test-random: export HYPOTHESIS_PROFILE = random
test-random: setup  ## the properties with other examples, and more of them; ROUNDS=3
	@for round in $$(seq $(ROUNDS)); do \
	    seed=$(or $(SEED),$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')); \
	    echo "round $$round of $(ROUNDS); to repeat it: make test-random ROUNDS=1 SEED=$$seed"; \
	    PYTHONHASHSEED=$$seed $(BIN)/pytest -m "hypothesis and not slow and not soak" \
	        --hypothesis-seed=$$seed $(PYTEST_ARGS) || exit 1; \
	done

test-soak: setup  ## tests whose subject is real time; minutes each, on a quiet machine
	$(BIN)/pytest -m soak -p no:xdist

fmt: setup  ## format the code and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## measure the simulator
	$(BIN)/ones bench sim

docs: export NO_MKDOCS_2_WARNING = 1
docs: setup  ## build the reference pages, then the site (site/index.html); broken links fail
	$(BIN)/python docs/build.py
	$(BIN)/mkdocs build --strict --quiet

release-check: setup  ## build wheel and sdist, and try them in empty environments (minutes)
	tools/release-check
