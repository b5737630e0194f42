# SPDX-License-Identifier: Apache-2.0

GO      ?= go
# Time that one package's tests may take.
TIMEOUT ?= 20m
# Arguments for what is run: make run ARGS="--secure-port 6443"
ARGS    ?=
# Repetitions of `make race`, and what it repeats.
COUNT   ?= 5
PKGS    ?= ./watchcache/... ./cacher/... ./storage/... ./server/... ./metrics/...
# How long `make faults`, `make chaos` and `make churn` go on, and the seed of their choices;
# empty: the short form.
DURATION ?=
SEED     ?=
# What `make release-check` checks for, and the commit that `make release-check`
# compares the public API with; empty: hack/apidiff.sh has the rule.
VERSION ?=
BASE    ?=
# What `make benchmarks` runs.
BENCH   ?= .
# What `make kubernetes-test` runs of Kubernetes' test/integration, and on which cache,
# or on both: "ours shipped".
PACKAGES       ?=
IMPLEMENTATION ?= ours
# How many fake nodes `make kubernetes-cluster` and `make kubernetes-load` have.
NODES          ?= 1000
# What `make verify-kubernetes` runs: some minutes of tests.
KUBERNETES_SUBSET = secrets events podgc storageclasses ttlcontroller

# The race detector needs a C compiler. Without one the tests run all the same,
# and say so; with CI=true that is an error.
RACE := $(shell set -- $$($(GO) env CC); command -v "$$1" >/dev/null 2>&1 && echo -race)
# Vet is a part of `make lint`, not of each test run: its facts about the
# dependencies are expensive on a cold cache. Without DWARF, which only a debugger
# needs, each of some fifty test binaries is linked a second sooner.
TESTFLAGS = $(RACE) -vet=off -count=1 -ldflags=-w -timeout $(TIMEOUT)
# Runs a command as a step that says what it took.
STEP = hack/step.sh
# The same without cgo, for all that is compiled without the race detector: then
# etcd, tools and the third test run share one build of what they have in common.
PLAINSTEP = CGO_ENABLED=0 $(STEP)
# The same with the runtime that `make seeded` writes, which schedules need. Its flags are
# not there where hack/seeded does not know the version of Go; the schedules then run as
# Go has it.
SEEDED = GOFLAGS="$$GOFLAGS $$(cat bin/seeded/flags 2>/dev/null)" $(PLAINSTEP)

.DEFAULT_GOAL := help
.PHONY: help alerts run test soak replay seeded schedules-compiled schedules racing programs on-etcd beside race lint vet static generate bench tuning benchmarks dashboards observe build verify conformance clientgo backends browser kubernetes kubernetes-test kubernetes-binary kubernetes-cluster kubernetes-load verify-kubernetes e2e faults chaos churn mutants mutation release-check versions compiler clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

run: ## serve the example API server with an etcd inside it, on 127.0.0.1 (ARGS=... are its flags)
	@echo "compiling the example server; with an empty cache that takes minutes" >&2
	@$(GO) build -o bin/apiserver ./examples/apiserver
	@exec bin/apiserver $(ARGS)

# Integration runs alone and in its own folder, because only there does go test
# show what the tests print: the etcd in use and the number of conformance
# suites. The invariants tag changes our own packages only, so the second pass
# reuses the first one's build of everything else; the tests of wire, which encode
# and compress much, run in it only. Allocations and heap are counted in a third
# one, without the race detector, which allocates itself; the burst to 1,000
# watchers has its full size there. The commands of examples/minimal are tried
# without the race detector and without cgo, so that the server that they compile
# shares its build with these; so are all lists of the servers with and without
# InstallAPIGroup, of which the first pass compares a share. Each step says what it took.
test: compiler programs ## run every test once with the race detector, then the state machine, the cacher and conformance with invariants checked
	@$(STEP) "unit tests" $(GO) test $(TESTFLAGS) $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -Ev '/integration(/faults|/chaos|/observe|/minimal|/hostile)?$$|/cacher/internal/wire$$')
	@$(STEP) "unit tests with invariants" $(GO) test $(TESTFLAGS) -tags invariants ./watchcache/... ./cacher/...
	@$(PLAINSTEP) "tests without the race detector" $(GO) test -vet=off -count=1 -ldflags=-w -timeout $(TIMEOUT) ./integration/minimal ./cacher/internal/wire
	@$(PLAINSTEP) "lists to the byte" $(GO) test -vet=off -count=1 -ldflags=-w -timeout $(TIMEOUT) -run 'AreTheSameToTheByte$$' ./server
	@$(PLAINSTEP) "allocations and heap" $(GO) test -vet=off -count=1 -ldflags=-w -run 'Allocations|Heap|ClonesNothing|NeverReading' ./watchcache ./cacher ./internal/heapsize
	@$(MAKE) --no-print-directory schedules-compiled
	@$(MAKE) --no-print-directory -j2 --output-sync=target schedules racing
	@$(MAKE) --no-print-directory -j2 --output-sync=target on-etcd beside
	@$(STEP) "faults" $(GO) test -C integration/faults $(TESTFLAGS)
	@$(STEP) "chaos" $(GO) test -C integration/chaos $(TESTFLAGS)

schedules-compiled: seeded
	@$(SEEDED) "compile the simulation" $(GO) test -vet=off -ldflags=-w -c -o /dev/null ./simulation

# Each takes one core for three to four minutes: the racing schedules, which are done
# sooner, leave time for some of the others.
SPLIT = 180000
schedules: seeded
	@$(SEEDED) "simulation" $(GO) test -vet=off -count=1 -ldflags=-w -timeout $(TIMEOUT) -v -run '^(TestSchedules|TestSameSeedSameTrace|TestSameTraceInEveryProcess|TestSeedsOfSoak)$$' ./simulation -args -all -last $(SPLIT)

racing: seeded
	@$(STEP) "simulation, racing" $(GO) test $(TESTFLAGS) -v -run '^TestRacingSchedules$$' ./simulation -args -all
	@$(SEEDED) "simulation, the rest" $(GO) test -vet=off -count=1 -ldflags=-w -timeout $(TIMEOUT) -v -run '^TestSchedules$$' ./simulation -args -all -first $$(($(SPLIT) + 1))

# Both wait for servers most of the time, so that make test runs one beside the
# other. The faults' shares of answers are measured alone.
on-etcd:
	@$(STEP) "integration" $(GO) test -C integration $(TESTFLAGS)
	@$(STEP) "conformance with invariants" $(GO) test -C integration $(TESTFLAGS) -tags invariants -run '^TestConformance$$'

beside: backends
	@$(STEP) "make observe" $(GO) test -C integration/observe $(TESTFLAGS)
	@$(STEP) "page in a browser" $(GO) test -C integration/browser $(TESTFLAGS) ./...
	@$(PLAINSTEP) "hostile clients" $(GO) test -C integration/hostile -vet=off -count=1 -ldflags=-w -timeout $(TIMEOUT)

# What the tests run as processes is compiled before, so that no time that a
# test may take includes it. Each command is what a test then finds compiled:
# integration/etcdserver, integration, integration/faults. Kine takes long, most of
# it on one core, and is compiled beside the integration tests.
programs:
	@$(PLAINSTEP) "compile etcd" $(GO) build -o /dev/null go.etcd.io/etcd/server/v3
	@$(PLAINSTEP) "compile the members' keeper" $(GO) build -o /dev/null ./integration/etcdserver/keeper
	@$(STEP) "compile the example server" $(GO) build $(RACE) -o /dev/null ./examples/apiserver
	@$(STEP) "compile the faults' server" $(GO) build $(RACE) -o /dev/null ./integration/faults/testserver

race: compiler ## repeat the concurrent packages' tests with race detector and invariants (COUNT=5, PKGS=...)
	$(GO) test $(RACE) -vet=off -tags invariants -timeout $(TIMEOUT) -count=$(COUNT) $(PKGS)

conformance: compiler ## run the suites of k8s.io/apiserver's storage against the cacher (ETCD_MODE=container|process|embedded)
	cd integration && $(GO) test $(TESTFLAGS) -tags invariants -run '^TestConformance$$'

e2e: compiler ## run the end-to-end test of the example server (ETCD_MODE=container|process|embedded)
	cd integration && $(GO) test $(TESTFLAGS) -run '^TestEndToEnd'

clientgo: compiler ## test what client-go's tools/cache needs from the cache, in process and over HTTPS
	cd integration/clientgo && $(GO) test $(TESTFLAGS)

faults: compiler ## break a cluster of three etcd members under a server, beside the shipped cacher's (DURATION=30m SEED=1: random faults)
	cd integration/faults && FAULTS_DURATION=$(DURATION) FAULTS_SEED=$(SEED) $(GO) test $(RACE) -vet=off -count=1 -timeout 24h

chaos: compiler ## break three etcd members and three servers at random under load, judge all that clients saw, leave a report (DURATION=30m SEED=1 ETCD_MODE=container|process; without: the short form)
	cd integration/chaos && CHAOS_DURATION=$(DURATION) CHAOS_SEED=$(SEED) $(GO) test $(RACE) -vet=off -count=1 -timeout 24h $(if $(DURATION),-run '^Test(RandomFaults|RestoredBackup)$$' -v)

churn: compiler ## open and drop 10,000 watches a minute over HTTPS, with every option, and see that nothing is left of them (DURATION=10m SEED=1)
	cd integration/hostile && CHURN_DURATION=$(or $(DURATION),10m) CHURN_SEED=$(SEED) $(GO) test $(RACE) -vet=off -count=1 -timeout 24h -run '^TestChurn$$' -v

soak: seeded ## run random schedules against the cache until Ctrl-C, then print what they reached (ARGS="-first 1000000")
	@cd simulation && CGO_ENABLED=0 GOFLAGS="$$GOFLAGS $$(cat ../bin/seeded/flags 2>/dev/null)" $(GO) test -vet=off -count=1 -timeout 0 -run '^TestSoak$$' -v . -args -soak $(ARGS)

replay: seeded ## run the schedule of one seed again, step by step the same (ARGS="-seed 7 -racing -trace")
	@cd simulation && CGO_ENABLED=0 GOFLAGS="$$GOFLAGS $$(cat ../bin/seeded/flags 2>/dev/null)" $(GO) test -vet=off -count=1 -run '^TestReplay$$' -v . -args $(ARGS)

# A Go runtime whose bubbles of testing/synctest are scheduled by a seed.
seeded:
	@if ! $(GO) run ./hack/seeded bin/seeded; then \
		[ "$$CI" != true ] || exit 1; \
		echo "schedules run as Go schedules them: some seeds have more than one trace"; \
	fi

mutants: compiler ## put each of the bugs of simulation/testdata/bugs into a copy, and fail if the tests miss one (ARGS="bookmark 023": parts of names)
	@$(GO) run ./hack/mutants $(ARGS)

mutation: ## change one operator, condition or call at a time, and print what no test notices; minutes a package (PKGS="./watchcache", ARGS="-then ./cacher")
	@$(GO) run ./hack/mutation $(ARGS) $(PKGS)

backends: compiler ## run the cache on kine with SQLite, and Kubernetes' sample API server and custom resources on the cache
	@$(STEP) "sample API server" $(GO) test -C integration/sample $(TESTFLAGS) ./...
	@$(STEP) "custom resources" $(GO) test -C integration/customresources $(TESTFLAGS) ./...
	@GOFLAGS= GOWORK=off $(STEP) "compile kine" $(GO) build -C integration/kine/server -buildvcs=false -o /dev/null .
	@$(STEP) "kine" $(GO) test -C integration/kine $(TESTFLAGS) ./...

browser: compiler ## test /debug/watchcache in chromium, which is installed if it may be (SCREENSHOTS=1 writes docs/images)
	@hack/chromium.sh || [ "$$CI" != true ]
	@$(STEP) "page in a browser" $(GO) test -C integration/browser $(TESTFLAGS) ./...

# kube-apiserver takes about ten minutes to compile when nothing is cached, and so do
# Kubernetes' tests, whose copy of Kubernetes is another one to the compiler.
kubernetes: ## run both examples and whole clusters on a kube-apiserver with our cache and with the shipped one, compiled first (WATCHCACHE_KUBERNETES_BINARY: bin/kubernetes, if it is there)
	@$(PLAINSTEP) "clusters" env GOWORK=off $(GO) test -C integration/kubernetes -vet=off -count=1 -timeout 60m ./...

kubernetes-cluster: kubernetes-binary ## run a cluster with controllers, scheduler and fake nodes until Ctrl-C (IMPLEMENTATION=ours|shipped NODES=1000)
	@exec bin/kubernetes up --dir=.run/kubernetes --implementation="$(IMPLEMENTATION)" --nodes=$(NODES) $(ARGS)

kubernetes-load: kubernetes-binary ## put clusters on both caches under the same load by turns, and print what that took (NODES=1000 ARGS="--pods=20000 --rounds=2")
	@exec bin/kubernetes load --dir=.run/kubernetes-load --nodes=$(NODES) $(ARGS)

kubernetes-binary:
	@echo "compiling Kubernetes; with an empty cache that takes ten minutes or more" >&2
	@cd integration/kubernetes && GOWORK=off CGO_ENABLED=0 $(GO) build -ldflags=-w -o ../../bin/kubernetes ./cluster

kubernetes-test: ## run Kubernetes' own integration tests (PACKAGES="job apiserver/apply" IMPLEMENTATION="ours shipped" ARGS="-keep -jobs 3")
	@cd integration/kubernetes && GOWORK=off CGO_ENABLED=0 $(GO) run ./suites -implementation "$(IMPLEMENTATION)" -packages "$(PACKAGES)" $(ARGS)

verify-kubernetes: ## run the quick ones of Kubernetes' own integration tests on our cache
	@$(PLAINSTEP) "table of Kubernetes' tests" env GOWORK=off $(GO) test -C integration/kubernetes -vet=off -count=1 ./suites
	@$(STEP) "Kubernetes' own tests" $(MAKE) --no-print-directory kubernetes-test PACKAGES="$(KUBERNETES_SUBSET)"

# The packages of integration/kubernetes that import Kubernetes are compiled by
# make kubernetes only. Vet and staticcheck look at the race build, which is the one that the tests
# need anyway. What only one of the two builds uses is not unused.
lint: vet static ## check formatting, vet, staticcheck, the public API, links in Markdown pages, and that generated files are fresh

vet: ## the first half of lint: formatting and vet, which compiles for the tests as well
	@files=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); \
	if [ -n "$$files" ]; then echo "not formatted by gofmt:"; echo "$$files"; exit 1; fi
	@$(STEP) "vet" $(GO) vet $(RACE) ./...
	@$(STEP) "vet with invariants" $(GO) vet $(RACE) -tags invariants ./watchcache/... ./cacher/...
	@$(STEP) "vet minimal" $(GO) vet -C examples/minimal $(RACE) ./...
	@$(STEP) "vet sample" $(GO) vet -C integration/sample $(RACE) ./...
	@$(STEP) "vet customresources" $(GO) vet -C integration/customresources $(RACE) ./...
	@$(STEP) "vet kine" $(GO) vet -C integration/kine $(RACE) ./...
	@$(STEP) "vet browser" $(GO) vet -C integration/browser $(RACE) ./...
	@$(STEP) "vet kubernetes" $(GO) vet -C integration/kubernetes $(RACE) . ./suites ./local ./nodes ./load

static: ## the other half of lint
	@$(PLAINSTEP) "compile staticcheck" $(GO) build -C hack/tools -o ../../bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	@printf 'default:\ninvariants: -tags=invariants\n' | GOFLAGS="$$($(GO) env GOFLAGS) $(RACE)" $(STEP) "staticcheck" bin/staticcheck -matrix ./...
	@$(PLAINSTEP) "generated files" hack/generate.sh --verify
	@$(PLAINSTEP) "public API" hack/apidiff.sh
	@$(PLAINSTEP) "links" $(GO) test -vet=off -count=1 -run '^TestLinks$$' ./hack/arrows

generate: dashboards ## write the generated files: the example's API (deepcopy, conversion, clientset, listers, informers), the dashboards and docs/metrics.md
	$(GO) run ./metrics/generate docs/metrics.md
	hack/generate.sh

dashboards: ## write the Grafana dashboards, and the rules for Prometheus with their tests
	$(GO) run ./dashboards/generate dashboards

observe: ## run the example server, clients that load it, and Prometheus, until Ctrl-C (ARGS="-scale 20": alerts fire sooner)
	@hack/packages.sh prometheus
	@$(GO) build -o bin/apiserver ./examples/apiserver
	@$(GO) build -o bin/observe ./integration/observe/run
	@exec bin/observe -server bin/apiserver $(ARGS)

alerts: compiler ## break example servers under a Prometheus: each alert in its fault, each panel with data (one minute)
	@hack/packages.sh prometheus
	$(GO) test -C integration/observe $(TESTFLAGS) -v -run '^TestAlerts$$'

release-check: ## say what a release lacks: changes of the public API, examples, pages (VERSION=v0.37.0 BASE=commit)
	@VERSION=$(VERSION) BASE=$(BASE) hack/release-check.sh

bench: ## measure against the cacher that k8s.io/apiserver ships (ARGS=... are its flags, -h lists them)
	$(GO) run ./bench $(ARGS)

tuning: ## repeat the runs behind the plots of docs/tuning.md, and draw these (two minutes)
	CGO_ENABLED=0 $(GO) test -vet=off -count=1 -ldflags=-w ./bench/tuning -run '^TestFigures$$' -rewrite
	$(GO) run ./bench/plot

benchmarks: ## run the packages' benchmarks (BENCH=regexp)
	$(GO) test -vet=off -run '^$$' -bench '$(BENCH)' -benchmem ./...

build: ## compile everything, and the example server to bin/apiserver
	$(GO) build ./...
	$(GO) build -o bin/apiserver ./examples/apiserver

verify: lint test versions ## lint and test, which is what CI runs, then the other minors of Kubernetes

# Without cgo and the race detector: nothing else compiles these libraries.
versions: ## compile and vet the module on the other minor versions of Kubernetes that it holds (docs/versions.md)
	@$(PLAINSTEP) "other minors of Kubernetes" $(GO) run ./hack/versions check

clean: ## remove what the targets above leave in the tree: bin/ and .run/
	rm -rf bin .run

compiler:
	@if [ -z "$(RACE)" ]; then \
		echo "no C compiler ($$($(GO) env CC)): the tests run WITHOUT the race detector"; \
		if [ "$$CI" = true ]; then echo "CI=true: that is an error; install gcc and libc6-dev"; exit 1; fi; \
	fi
