#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compares what the public packages export with what they exported at BASE, by
# golang.org/x/exp/cmd/apidiff of hack/tools, and says what was compared.
#
#   hack/apidiff.sh            the working tree with BASE
#   BASE=<commit> hack/apidiff.sh
#
# Without BASE it is the latest release (a tag v*) that the tree descends from;
# before the first release, where the branch left origin/main or main; on main
# itself, the commit before.
#
# Exits 1 for an incompatible change since a release of the same minor version of
# Kubernetes: docs/adopting.md has the rule. Since anything else, changes are
# printed only. APIDIFF names the program; if it is not set, it is compiled.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
root="${ROOT:-$(cd "$here/.." && pwd -P)}"
# What is not for others to import.
private=(':!bench' ':!dashboards' ':!docs' ':!examples' ':!hack' ':!integration')

say() { echo "apidiff: $*"; }
# The clone may belong to another user.
repo() { git -c "safe.directory=$root" -C "$root" "$@"; }

if ! repo rev-parse --verify -q HEAD >/dev/null; then
  say "$root is not a git repository with a commit: nothing to compare with"
  exit 0
fi

base="${BASE:-}"
if [ -z "$base" ]; then
  base="$(repo describe --tags --abbrev=0 --match 'v[0-9]*' HEAD 2>/dev/null || true)"
fi
for main in origin/main main; do
  [ -z "$base" ] || break
  base="$(repo merge-base HEAD "$main" 2>/dev/null || true)"
  if [ "$base" = "$(repo rev-parse HEAD)" ]; then base=; fi
done
if [ -z "$base" ]; then
  base="$(repo rev-parse --verify -q HEAD^ || true)"
fi
if [ -z "$base" ]; then
  say "no release, no main and no commit before this one: nothing to compare with"
  exit 0
fi
if ! repo rev-parse --verify -q "$base^{commit}" >/dev/null; then
  say "BASE $base is no commit of this repository" >&2
  exit 1
fi

# minor prints the minor version of Kubernetes that a go.mod follows.
minor() { awk '$1 == "k8s.io/apiserver" { split($2, v, "."); print v[2]; exit }'; }
release=
case "$base" in v[0-9]*) release="${base#v*.}" release="${release%%.*}" ;; esac
kubernetes="$(minor <"$root/go.mod")"
say "the working tree (Kubernetes 1.$kubernetes) with $base ($(repo log -1 --format='%h, %cs' "$base"))"
if repo diff --quiet "$base" -- '*.go' ':!*_test.go' "${private[@]}" &&
  [ -z "$(repo ls-files --others --exclude-standard -- '*.go' ':!*_test.go' "${private[@]}")" ]; then
  say "no public package has changed"
  exit 0
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
program="${APIDIFF:-$work/apidiff}"
if [ -z "${APIDIFF:-}" ]; then
  go -C "$here/tools" build -o "$program" golang.org/x/exp/cmd/apidiff
fi
module="$(awk '$1 == "module" { print $2; exit }' "$root/go.mod")"
mkdir "$work/old" "$work/new"
repo archive "$base" -- . "${private[@]}" | tar -x -C "$work/old"
repo ls-files -z --cached --others --exclude-standard -- . "${private[@]}" |
  (cd "$root" && tar -c --null --ignore-failed-read -T - 2>/dev/null) | tar -x -C "$work/new"

# run calls the program, whose stderr names each internal package that it leaves out.
run() {
  local errors="$work/errors.$BASHPID"
  if ! "$program" "$@" 2>"$errors"; then
    grep -v '^Ignoring internal package' "$errors" >&2
    return 1
  fi
}
(cd "$work/old" && GOWORK=off run -m -w "$work/old.api" "$module") &
(cd "$work/new" && GOWORK=off run -m -w "$work/new.api" "$module") || { say "the packages of the working tree can't be read" >&2; exit 1; }
wait $! || { say "the packages of $base can't be read" >&2; exit 1; }

run -m "$work/old.api" "$work/new.api" >"$work/report"
if ! [ -s "$work/report" ]; then
  say "nothing exported has changed"
  exit 0
fi
cat "$work/report"
run -m -incompatible "$work/old.api" "$work/new.api" >"$work/incompatible"
if ! [ -s "$work/incompatible" ]; then
  say "all of it is compatible"
elif [ "$release" = "$kubernetes" ]; then
  say "incompatible changes since $base: they have to wait for the next minor version of Kubernetes" >&2
  exit 1
else
  say "incompatible changes, which are allowed: $base is not a release for Kubernetes 1.$kubernetes. They belong into CHANGELOG.md"
fi
