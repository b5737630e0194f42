#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs what make test leaves out, and make lint:
#
#   hack/verify.sh        all of it
#   hack/verify.sh lint   formatting, vet, staticcheck, generated files, public API, known vulnerabilities, links
#
# A step that fails does not keep the others from running: the last lines name it.
# GO, RACE and TIMEOUT come from the Makefile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

go=${GO:-go}
race=${RACE:-}
timeout=${TIMEOUT:-20m}
flags=$("$go" env GOFLAGS)
failed=$(mktemp)
output=$(mktemp)
trap 'rm -f "$failed" "$output"' EXIT

step() { hack/step.sh "$@" || echo "$1" >>"$failed"; }

# plain is for everything without the race detector: one build without cgo. raced has
# the flags of make test, so that one build of the dependencies does for both.
plain() { CGO_ENABLED=0 step "$@"; }
raced() { GOFLAGS="$flags -tags=invariants" step "$@"; }
test_plain() { local name=$1; shift; plain "$name" "$go" test "$@" -vet=off -count=1 -ldflags=-w -timeout "$timeout"; }
# shellcheck disable=SC2086
test_raced() { local name=$1; shift; raced "$name" "$go" test -C "$1" $race -vet=off -count=1 -ldflags=-w -timeout "$timeout" "${@:2}"; }

# together runs two functions at a time. The second one leaves the processors to the first
# one's tests, and its output is printed when both have ended.
together() {
	(renice -n 10 "$BASHPID" >/dev/null; "$2") >"$output" 2>&1 &
	local second=$!
	"$1"
	wait "$second" || echo "$2" >>"$failed"
	cat "$output"
}

# Vet and staticcheck look at the build that the tests with the race detector need. Of
# integration/kubernetes, which has other versions, the types are checked; its packages
# that import Kubernetes are compiled by make kubernetes only.
vet() {
	step "formatting" bash -c 'files=$("$('"$go"' env GOROOT)/bin/gofmt" -l .); [ -z "$files" ] || { echo "not formatted by gofmt:"; echo "$files"; exit 1; }'
	# shellcheck disable=SC2086
	raced "vet" "$go" vet $race ./...
	for module in examples/minimal examples/computed integration/sample integration/customresources integration/kine integration/browser integration/beside; do
		# shellcheck disable=SC2086
		raced "vet $module" "$go" vet -C "$module" $race ./...
	done
	plain "compile typecheck" "$go" build -C hack/tools -o ../../bin/typecheck ./typecheck
	plain "types of integration/kubernetes" env -C integration/kubernetes GOWORK=off ../../bin/typecheck -mod=readonly . ./suites ./local ./nodes ./load ./install ./insert ./builtin
}

static() {
	plain "compile staticcheck" "$go" build -C hack/tools -o ../../bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	# What only one of the two builds uses is not unused.
	printf 'default:\ninvariants: -tags=invariants\n' | GOFLAGS="$flags $race" step "staticcheck" bin/staticcheck -matrix ./...
	plain "generated files" hack/generate.sh --verify
	plain "public API" hack/apidiff.sh
	plain "vulnerabilities" hack/vulnerabilities.sh
	plain "pages and the tree's shape" "$go" test -vet=off -count=1 ./hack/arrows
}

lint() { vet; static; }

# Schedules are run by a Go runtime of ours, without the race detector, and racing ones
# with it as well. Each half takes one core for as long as the other one.
deterministic=36000
all=60000
seeded() { CGO_ENABLED=0 GOFLAGS="$flags $(cat bin/seeded/flags 2>/dev/null)" step "$@"; }
test_seeded() { local name=$1; shift; seeded "$name" "$go" test -vet=off -count=1 -ldflags=-w -timeout "$timeout" ./simulation -v "$@"; }
schedules() {
	test_seeded "simulation" -run '^(TestSchedules|TestSameSeedSameTrace|TestSeedsOfSoak)$' -args -last "$deterministic"
	test_seeded "simulation, two servers" -run '^TestClientsMoveBetweenServers$' -args -schedules 12000
}
racing() {
	test_raced "simulation, racing" . ./simulation -v -run '^TestRacingSchedules$' -args -all
	test_seeded "simulation, the rest" -run '^TestSchedules$' -args -first "$((deterministic + 1))" -last "$all"
}

# What needs no race detector and measures nothing: the servers with and without
# InstallAPIGroup are compared in all lists, and the servers of examples/minimal and
# examples/computed, which tests compile, share their build with the next tests.
unraced() {
	static
	test_plain "without the race detector" ./integration/minimal ./integration/computed ./internal/keptlists
	test_plain "lists to the byte" -run 'AreTheSameToTheByte$|^TestCompressedLists' ./server
	plain "other minors of Kubernetes" "$go" run ./hack/versions check
}

# Nothing runs beside what is measured. Allocations and heap are counted without the race
# detector, which allocates itself, and bursts go to 1,000 watchers.
measured() {
	test_plain "allocations, heap and growth" -run 'Allocations|Heap|Linear$|ClonesNothing|NeverReading|^TestMemory$|^TestBurst$' ./watchcache ./cacher ./cacher/internal/match ./debug ./internal/heapsize ./storage/memory ./server
	plain "fuzzing" hack/fuzz.sh 3s blind
	test_plain "hostile clients" -C integration/hostile
	test_plain "beside the shipped cacher" -C integration/beside -run '^(TestBeside|TestOptions|TestRowsAreRules)$'
	test_plain "bench" ./bench/...
}

waiting() {
	test_raced "client-go" integration/clientgo
	test_raced "rolling upgrade" integration/rolling
	test_raced "relay" integration/relay
	test_raced "sample API server" integration/sample ./...
	test_raced "custom resources" integration/customresources ./...
	test_raced "kine" integration/kine ./...
	test_raced "alerts and dashboards" integration/observe
	test_raced "page in a browser" integration/browser ./...
}

if [ "${1:-}" = lint ]; then
	lint
else
	hack/skipped.sh begin promtool=prometheus prometheus "chromium|chromium-browser|google-chrome=chromium" "initdb|/usr/lib/postgresql/*/bin/initdb=postgresql"
	vet
	seeded "compile the simulation" "$go" test -vet=off -ldflags=-w -c -o /dev/null ./simulation
	together schedules racing
	together waiting unraced
	measured
	# Both break servers and measure how many requests are answered: nothing runs beside.
	test_raced "faults" integration/faults
	test_raced "chaos" integration/chaos
	hack/skipped.sh end
fi
if [ -s "$failed" ]; then
	echo "FAILED:"
	sort -u "$failed" | sed 's/^/  /'
	exit 1
fi
