#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs every native fuzz target for so long each; an input that fails is kept in the
# package's testdata/fuzz, and is a test from then on.
#
#   hack/fuzz.sh TIME [blind]
#
# Coverage guides the inputs, for which all dependencies are compiled a second time;
# blind does without both. GO comes from the Makefile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

go=${GO:-go}
time=${1:?for how long each target runs, as 1m}
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT

# fuzz runs a command that fuzzes, and has it pass where nothing failed but the
# fuzzer's own end: an input that runs when the time is over may be reported as
# "context deadline exceeded" (go.dev/issue/75804, mended in Go 1.27).
fuzz() {
	"$@" 2>&1 | tee "$built/output" && return
	grep -qx ' *context deadline exceeded' "$built/output" && ! grep -q 'Failing input written' "$built/output"
}

status=0
for file in $(git grep -lE '^func Fuzz[A-Z]' -- '*_test.go'); do
	dir=./$(dirname "$file")
	for target in $(sed -nE 's/^func (Fuzz[A-Za-z0-9]+)\(.*/\1/p' "$file"); do
		echo "-- $dir $target"
		if [ "${2:-}" = blind ]; then
			[ -e "$built/$dir/test" ] || "$go" test -vet=off -ldflags=-w -c -o "$built/$dir/test" "$dir"
			(cd "$dir" && fuzz "$built/$dir/test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.fuzzcachedir "$built/corpus") || status=1
		else
			fuzz "$go" test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$dir" || status=1
		fi
	done
done
exit "$status"
