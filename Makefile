# SPDX-License-Identifier: Apache-2.0

GO      ?= go
# Time that the tests of one package may take.
TIMEOUT ?= 20m
# Arguments for the program that a target runs: make run ARGS="--secure-port 6443"
ARGS    ?=
# The packages of `make quick`: none links an etcd. Those of `make race`, and how often
# it repeats them. MINOR are those of `make minor`.
PKGS    ?=
COUNT   ?= 5
QUICK    = ./watchcache/... ./cacher/... ./internal/... ./metrics/... ./debug/... ./simulation ./dashboards ./hack/arrows ./hack/mutants
MINOR    = ./watchcache/... ./cacher/... ./internal/... ./metrics/... ./informer/... ./storage/... ./conformance ./server ./simulation ./integration
RACING   = ./watchcache/... ./cacher/... ./storage/... ./server/... ./metrics/...
# What `make e2e` runs: a folder of integration, the tests to pick there, how long
# random faults go on, and the seed of their choices.
SUITE    ?= .
RUN      ?=
DURATION ?=
SEED     ?=
# What `make release-check` checks for, and the commit that it compares the public API
# with; empty: hack/apidiff.sh has the rule.
VERSION ?=
BASE    ?=
# What `make kubernetes-test` runs of Kubernetes' test/integration, and on which cache,
# or on both: "watchcache shipped". By default the quick ones.
PACKAGES       ?= secrets events podgc storageclasses ttlcontroller
IMPLEMENTATION ?= watchcache

# The race detector needs a C compiler. Without one the tests run all the same,
# and say so; with CI=true that is an error.
RACE := $(shell set -- $$($(GO) env CC); command -v "$$1" >/dev/null 2>&1 && echo -race)
# One build for everything that runs with the race detector: of the tests, of vet, and
# of the programs that tests compile, which read the tag from GOFLAGS. Without DWARF,
# which only a debugger needs, each of some fifty test binaries is linked a second sooner.
TAGGED    = GOFLAGS="$$($(GO) env GOFLAGS) -tags=invariants"
TESTFLAGS = $(RACE) -vet=off -ldflags=-w -timeout $(TIMEOUT)
# How many packages make test has compiled or tested at a time: some of them wait most of
# the time.
PARALLEL  = $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
# The packages whose tests take longest, which begin first.
LONG      = ./server ./integration ./cacher
# Suites that break servers, need other programs, or measure: `make verify` runs them.
SLOW      = /(bench|integration/(faults|chaos|observe|minimal|computed|hostile|clientgo|rolling|beside|relay))(/|$$)
# Runs a command as a step that says what it took.
STEP = hack/step.sh
# The flags of the Go runtime that hack/seeded writes, which schedules need. Where it
# does not know the version of Go there are none, and schedules run as Go has it.
SEEDED = CGO_ENABLED=0 GOFLAGS="$$($(GO) env GOFLAGS) $$(cat bin/seeded/flags 2>/dev/null)"
# Tests add a line here for each program that they lack: hack/skipped.sh prints them.
export SKIPPED := $(CURDIR)/.run/skipped

# COMPILER begins a recipe that wants the race detector, SCHEDULER one that wants schedules
# by the seed.
define COMPILER
@if [ -z "$(RACE)" ]; then \
	echo "no C compiler ($$($(GO) env CC)): the tests run WITHOUT the race detector"; \
	if [ "$$CI" = true ]; then echo "CI=true: that is an error; install gcc and libc6-dev"; exit 1; fi; \
fi
endef
define SCHEDULER
@if ! $(GO) run ./hack/seeded bin/seeded; then \
	[ "$$CI" != true ] || exit 1; \
	echo "schedules run as Go schedules them: some seeds have more than one trace"; \
fi
endef

.DEFAULT_GOAL := help
.PHONY: help run quick test minor verify lint race e2e soak replay fuzz mutants generate observe soak-server bench kubernetes relay-demo kubernetes-test release-check clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-15s %s\n' "$$name" "$$text"; done

run: ## serve the example API server with an etcd inside it, on 127.0.0.1 (ARGS=... are its flags)
	@GO="$(GO)" hack/compile.sh bin/apiserver ./examples/apiserver
	@exec bin/apiserver $(ARGS)

quick: ## test what has changed, without race detector and etcd: the loop for whoever edits a file (PKGS=./cacher)
	@$(GO) test -tags invariants -vet=off -ldflags=-w -timeout $(TIMEOUT) $(or $(PKGS),$(QUICK))

test: ## run every package's tests once, with race detector and invariants, on a real etcd
	$(COMPILER)
	@hack/skipped.sh begin promtool=prometheus
	@$(TAGGED) $(STEP) "tests" $(GO) test $(TESTFLAGS) -p $(PARALLEL) -count=1 $(LONG) $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -Ev '$(SLOW)')
	@hack/skipped.sh end

minor: ## test the packages with the coming minor of Kubernetes and its version of Go, on an etcd inside the tests (PKGS=./cacher)
	@ETCD_MODE=embedded $(STEP) "Kubernetes 1.38" $(GO) run ./hack/versions -minor k8s38 test -count=1 -timeout $(TIMEOUT) $(or $(PKGS),$(MINOR))

verify: ## run what make test leaves out: lint, long schedules, faults, chaos, other backends, browser, alerts, allocations, versions
	$(COMPILER)
	$(SCHEDULER)
	@GO="$(GO)" RACE="$(RACE)" TIMEOUT="$(TIMEOUT)" hack/verify.sh

lint: ## check formatting, vet, staticcheck, the public API, vulnerabilities, links in pages, and that generated files are fresh
	@GO="$(GO)" RACE="$(RACE)" hack/verify.sh lint

race: ## repeat the concurrent packages' tests with race detector and invariants (COUNT=5, PKGS=...)
	$(COMPILER)
	$(TAGGED) $(GO) test $(TESTFLAGS) -count=$(COUNT) $(or $(PKGS),$(RACING))

e2e: ## run a folder of integration (SUITE=chaos RUN=TestRandomFaults DURATION=30m SEED=1 ETCD_MODE=container|process|embedded)
	$(COMPILER)
	@hack/skipped.sh begin $(if $(filter observe,$(SUITE)),prometheus promtool=prometheus) $(if $(filter browser,$(SUITE)),"chromium|chromium-browser|google-chrome=chromium") $(if $(filter kine,$(SUITE)),"initdb|/usr/lib/postgresql/*/bin/initdb=postgresql")
	@E2E_DURATION="$(DURATION)" E2E_SEED="$(SEED)" $(if $(filter kubernetes,$(SUITE)),GOWORK=off CGO_ENABLED=0,$(TAGGED)) $(STEP) "integration/$(SUITE)" $(GO) test -C integration/$(SUITE) \
		$(filter-out $(if $(filter kubernetes,$(SUITE)),-race),$(TESTFLAGS)) -count=1 $(if $(RUN),-run '$(RUN)' -v) $(if $(DURATION),-timeout 24h,$(if $(filter kubernetes,$(SUITE)),-timeout 60m)) $(if $(filter .,$(SUITE)),.,./...) $(ARGS)
	@hack/skipped.sh end

soak: ## run random schedules against the cache until Ctrl-C, then print what they reached (ARGS="-first 1000000")
	$(SCHEDULER)
	@$(SEEDED) $(GO) test -vet=off -count=1 -timeout 0 -run '^TestSoak$$' -v ./simulation -args -soak $(ARGS)

replay: ## run the schedule of one seed again, step by step the same (ARGS="-seed 7 -racing -trace")
	$(SCHEDULER)
	@$(SEEDED) $(GO) test -vet=off -count=1 -run '^TestReplay$$' -v ./simulation -args $(ARGS)

fuzz: ## run each native fuzz target for a minute (DURATION=10m); inputs that fail are kept in testdata/fuzz
	@GO="$(GO)" $(STEP) "fuzz" hack/fuzz.sh $(or $(DURATION),1m)

mutants: ## put each of the bugs of simulation/testdata/bugs into a copy, and fail if the tests miss one (ARGS="bookmark 023": parts of names)
	$(COMPILER)
	@$(GO) run ./hack/mutants $(ARGS)

generate: ## write the generated files: the example's API, dashboards, alerts, docs/metrics.md
	$(GO) run ./dashboards/generate dashboards
	$(GO) run ./metrics/generate docs/metrics.md
	hack/generate.sh

observe: ## run the example server, clients that load it, and Prometheus, until Ctrl-C (ARGS="-scale 20": alerts fire sooner)
	@hack/packages.sh prometheus
	@$(GO) build -o bin/apiserver ./examples/apiserver
	@$(GO) build -o bin/observe ./integration/observe/run
	@exec bin/observe -server bin/apiserver $(ARGS)

soak-server: ## run that for two hours (DURATION=30m), write its memory and goroutines to bench/results/soak.md, and plot them
	@hack/packages.sh prometheus
	@$(GO) build -o bin/apiserver ./examples/apiserver
	@$(GO) build -o bin/observe ./integration/observe/run
	@bin/observe -server bin/apiserver -soak $(or $(DURATION),2h)
	@$(GO) run ./bench/plot

bench: ## measure against the cacher that k8s.io/apiserver ships (ARGS=... are its flags, -h lists them)
	$(GO) run ./bench $(ARGS)

kubernetes: ## compile a kube-apiserver on our cache, controllers and fake nodes to bin/kubernetes; then bin/kubernetes up|load --help
	@echo "compiling Kubernetes; with an empty cache that takes ten minutes or more" >&2
	@mkdir -p .run/kubernetes-source
	@cd integration/kubernetes && export GOWORK=off CGO_ENABLED=0 && modfile="$$($(GO) run ./builtin ../../.run/kubernetes-source)" && version="$$($(GO) list -m -f '{{.Version}}' k8s.io/kubernetes)" && $(GO) build -ldflags="-w -X k8s.io/component-base/version.gitVersion=$$version" -modfile="$$modfile" -o ../../bin/kubernetes ./cluster

relay-demo: kubernetes ## run a cluster on this machine and a relay before it, until Ctrl-C (ARGS="--nodes=100", see bin/kubernetes relay --help)
	@CGO_ENABLED=0 $(GO) build -ldflags=-w -o bin/relay ./cmd/relay
	@exec bin/kubernetes relay $(ARGS)

kubernetes-test: ## run Kubernetes' own integration tests (PACKAGES="job apiserver/apply" IMPLEMENTATION="watchcache shipped" ARGS="-keep -jobs 3")
	@cd integration/kubernetes && GOWORK=off CGO_ENABLED=0 $(GO) run ./suites -implementation "$(IMPLEMENTATION)" -packages "$(PACKAGES)" $(ARGS)

release-check: ## say what a release lacks: changes of the public API, examples, pages (VERSION=v0.37.0 BASE=commit)
	@VERSION=$(VERSION) BASE=$(BASE) hack/release-check.sh

clean: ## remove what the targets above leave in the tree: bin/ and .run/
	rm -rf bin .run
