#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Says whether the tree can be released, and what is missing.
#
#   hack/release-check.sh                    what any commit should be
#   VERSION=v0.37.0 hack/release-check.sh    that, and what this release needs
#
# What make lint and make test check is not repeated, but for the public API, the
# examples and the pages, which are what a release shows. BASE is handed to
# hack/apidiff.sh. Every problem is printed, one line each.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
root="${ROOT:-$(cd "$here/.." && pwd -P)}"
version="${VERSION:-}"
problems=0

say() { echo "release-check: $*"; }
problem() { problems=$((problems + 1)); say "problem: $*"; }
repo() { git -c "safe.directory=$root" -C "$root" "$@"; }

# The names that versions of this module have follow Kubernetes' minor version.
kubernetes="$(awk '$1 == "k8s.io/apiserver" { split($2, v, "."); print v[2]; exit }' "$root/go.mod")"
changelog="$root/CHANGELOG.md"
if [ -n "$version" ]; then
  say "version $version for Kubernetes 1.$kubernetes"
  [[ "$version" =~ ^v0\.$kubernetes\.[0-9]+(-(alpha|beta|rc)\.[0-9]+)?$ ]] ||
    problem "VERSION $version: go.mod follows Kubernetes 1.$kubernetes, so it must be v0.$kubernetes.PATCH"
  if repo rev-parse --verify -q "refs/tags/$version" >/dev/null; then
    problem "VERSION $version: there is such a tag already"
  fi
  grep -qE "^## \[${version#v}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" "$changelog" ||
    problem "CHANGELOG.md has no line \"## [${version#v}] - YYYY-MM-DD\""
  [ -z "$(repo status --porcelain)" ] || problem "the working tree has changes that are not committed"
else
  grep -qE '^## \[Unreleased\]' "$changelog" || problem 'CHANGELOG.md has no section "## [Unreleased]"'
fi
if grep -qE '^(replace|exclude)\b' "$root/go.mod"; then
  problem "go.mod has a replace or exclude directive, which a module that requires this one does not see"
fi
# docs/adopting.md has a row for the versions that go.mod requires.
for requirement in k8s.io/apiserver go.etcd.io/etcd/client/v3; do
  required="$(awk -v m="$requirement" '$1 == m { print $2; exit }' "$root/go.mod")"
  grep -E '^\|' "$root/docs/adopting.md" | grep -qF "$required" ||
    problem "docs/adopting.md has no row with $requirement $required, which go.mod requires"
done

say "public API"
"$here/apidiff.sh" || problem "the public API has changed incompatibly"

cd "$root"
say "examples"
go build ./examples/... || problem "the examples do not compile"
for module in examples/*/go.mod; do
  GOWORK=off go build -C "${module%/*}" -o /dev/null ./... || problem "${module%/*} does not compile"
done
go test -vet=off -count=1 -run '^Example' $(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... |
  grep -Ev '/(bench|dashboards|examples|hack|integration|internal)(/|$)') || problem "an example does not print what it says"
for modfile in hack/versions/k8s*.mod; do
  [ -e "$modfile" ] || continue
  say "the minor of $modfile"
  minor="$(basename "$modfile" .mod)"
  held="$(awk '$1 == "k8s.io/apiserver" { print $2; exit }' "$modfile")"
  grep -E '^\|' docs/adopting.md | grep -qF "$held" || problem "docs/adopting.md has no row with k8s.io/apiserver $held, which $modfile requires"
  go run ./hack/versions -minor "$minor" build || problem "the public packages do not compile with $modfile"
done
if [ -n "$version" ]; then
  say "bill of materials: bin/watchcache-$version.cdx.json"
  mkdir -p bin
  go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0 mod -json -output "bin/watchcache-$version.cdx.json" . ||
    problem "the bill of materials can't be written"
fi
say "pages"
go test -vet=off -count=1 ./hack/arrows || problem "the tests of pages and of the tree's shape fail"

if [ "$problems" -gt 0 ]; then
  say "$problems problems"
  exit 1
fi
say "nothing is missing${version:+ for $version}"
