# SPDX-License-Identifier: Apache-2.0

GO      ?= go
# Time that one package's tests may take.
TIMEOUT ?= 20m
# Arguments for what is run: make run ARGS="--secure-port 6443"
ARGS    ?=
# Repetitions of `make race`, and what it repeats.
COUNT   ?= 5
PKGS    ?= ./watchcache/... ./cacher/... ./storage/... ./server/... ./metrics/...
# What `make benchmarks` runs.
BENCH   ?= .

# The race detector needs a C compiler. Without one the tests run all the same,
# and say so; with CI=true that is an error.
RACE := $(shell set -- $$($(GO) env CC); command -v "$$1" >/dev/null 2>&1 && echo -race)
# Vet is a part of `make lint`, not of each test run: its facts about the
# dependencies are expensive on a cold cache.
TESTFLAGS = $(RACE) -vet=off -count=1 -timeout $(TIMEOUT)

.DEFAULT_GOAL := help
.PHONY: help run test race lint generate bench benchmarks build verify conformance clientgo backends e2e compiler clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

run: ## serve the example API server with an etcd inside it, on 127.0.0.1 (ARGS=... are its flags)
	@$(GO) build -o bin/apiserver ./examples/apiserver
	@exec bin/apiserver $(ARGS)

# Integration runs alone and in its own folder, because only there does go test
# show what the tests print: the etcd in use and the number of conformance
# suites. The invariants tag changes our own packages only, so the second pass
# reuses the first one's build of everything else. Allocations and heap are
# counted in a third one, without the race detector, which allocates itself; the
# burst to 1,000 watchers has its full size there.
test: compiler ## run every test once with the race detector, then the state machine, the cacher and conformance with invariants checked
	$(GO) test $(TESTFLAGS) $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -v '/integration$$')
	$(GO) test $(TESTFLAGS) -tags invariants ./watchcache/... ./cacher/...
	$(GO) test -vet=off -count=1 -run 'Allocations|Heap|ClonesNothing|NeverReading' ./watchcache ./cacher
	cd integration && $(GO) test $(TESTFLAGS)
	cd integration && $(GO) test $(TESTFLAGS) -tags invariants -run '^TestConformance$$'
	$(MAKE) backends

race: compiler ## repeat the concurrent packages' tests with race detector and invariants (COUNT=5, PKGS=...)
	$(GO) test $(RACE) -vet=off -tags invariants -timeout $(TIMEOUT) -count=$(COUNT) $(PKGS)

conformance: compiler ## run the suites of k8s.io/apiserver's storage against the cacher (ETCD_MODE=container|process|embedded)
	cd integration && $(GO) test $(TESTFLAGS) -tags invariants -run '^TestConformance$$'

e2e: compiler ## run the end-to-end test of the example server (ETCD_MODE=container|process|embedded)
	cd integration && $(GO) test $(TESTFLAGS) -run '^TestEndToEnd'

clientgo: compiler ## hold client-go's tools/cache to its contract, in process and over HTTPS
	cd integration/clientgo && $(GO) test $(TESTFLAGS)

backends: compiler ## run the cache on kine with SQLite, and Kubernetes' sample API server on the cache
	cd integration/sample && $(GO) test $(TESTFLAGS) ./...
	cd integration/kine && $(GO) test $(TESTFLAGS) ./...

# Vet and staticcheck look at the race build, which is the one that the tests
# need anyway. What only one of the two builds uses is not unused.
lint: ## check formatting, vet, staticcheck, and that generated files are fresh
	@files=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); \
	if [ -n "$$files" ]; then echo "not formatted by gofmt:"; echo "$$files"; exit 1; fi
	$(GO) vet $(RACE) ./...
	$(GO) vet $(RACE) -tags invariants ./watchcache/... ./cacher/...
	cd integration/sample && $(GO) vet $(RACE) ./...
	cd integration/kine && $(GO) vet $(RACE) ./...
	cd hack/tools && $(GO) build -o ../../bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	printf 'default:\ninvariants: -tags=invariants\n' | GOFLAGS="$$($(GO) env GOFLAGS) $(RACE)" bin/staticcheck -matrix ./...
	hack/generate.sh --verify

generate: ## write the generated files of the example's API: deepcopy, conversion, clientset, listers, informers
	hack/generate.sh

bench: ## measure against the cacher that k8s.io/apiserver ships (ARGS=... are its flags, -h lists them)
	$(GO) run ./bench $(ARGS)

benchmarks: ## run the packages' benchmarks (BENCH=regexp)
	$(GO) test -vet=off -run '^$$' -bench '$(BENCH)' -benchmem ./...

build: ## compile everything, and the example server to bin/apiserver
	$(GO) build ./...
	$(GO) build -o bin/apiserver ./examples/apiserver

verify: lint test ## what CI runs: lint, then test

clean: ## remove what the targets above leave in the tree: bin/ and .run/
	rm -rf bin .run

compiler:
	@if [ -z "$(RACE)" ]; then \
		echo "no C compiler ($$($(GO) env CC)): the tests run WITHOUT the race detector"; \
		if [ "$$CI" = true ]; then echo "CI=true: that is an error; install gcc and libc6-dev"; exit 1; fi; \
	fi
