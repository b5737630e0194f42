#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Generates the code of the example API servers: deepcopy, defaults, conversion,
# openapi, clientset, listers and informers.
#
#   hack/generate.sh            write the generated files
#   hack/generate.sh --verify   change nothing; exit 1 if a file is out of date
#
# It needs Go and the module proxy only: the generators are the tools of
# hack/tools/go.mod, built from there, so that the main module does not depend on
# them. Everything is generated in a copy, so an error leaves the tree as it was.
set -euo pipefail

usage() {
  echo "usage: hack/generate.sh [--verify]" >&2
  exit 2
}

verify=false
case "$#:${1-}" in
  0:) ;;
  1:--verify) verify=true ;;
  *) usage ;;
esac

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
module="github.com/kube-watchcache/watchcache"
pkgs="examples/apiserver/pkg"
apis="$pkgs/apis"
generated="$pkgs/generated"
minimal="examples/minimal"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
bin="$work/bin"
copy="$work/copy"

say() { echo "generate: $*" >&2; }

say "building the generators of hack/tools/go.mod"
mkdir -p "$bin" "$copy/hack" "$copy/$pkgs"
for tool in deepcopy-gen defaulter-gen conversion-gen client-gen lister-gen informer-gen; do
  go -C "$root/hack/tools" build -o "$bin/$tool" "k8s.io/code-generator/cmd/$tool"
done
go -C "$root/hack/tools" build -o "$bin/openapi-gen" k8s.io/kube-openapi/cmd/openapi-gen

# The copy has the API packages without what was generated into them.
cp "$root/go.mod" "$root/go.sum" "$copy/"
cp "$root/hack/boilerplate.go.txt" "$copy/hack/"
cp -R "$root/$apis" "$copy/$apis"
find "$copy/$apis" -name 'zz_generated.*.go' -delete

cd "$copy"
header="hack/boilerplate.go.txt"
internal="$module/$apis/fleet"
served=("$module/$apis/fleet/v1" "$module/$apis/fleet/v1beta1")
meta=(k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version)

say "deepcopy, defaults, conversion"
"$bin/deepcopy-gen" --go-header-file "$header" --output-file zz_generated.deepcopy.go "$internal" "${served[@]}"
"$bin/defaulter-gen" --go-header-file "$header" --output-file zz_generated.defaults.go "${served[@]}"
"$bin/conversion-gen" --go-header-file "$header" --output-file zz_generated.conversion.go "${served[@]}"

say "openapi"
readonly_pkgs=()
for pkg in "${meta[@]}"; do
  readonly_pkgs+=(--readonly-pkg "$pkg")
done
mkdir -p "$generated/openapi"
"$bin/openapi-gen" --go-header-file "$header" --output-file zz_generated.openapi.go \
  --output-dir "$generated/openapi" --output-pkg "$module/$generated/openapi" \
  --output-model-name-file zz_generated.model_name.go \
  --report-filename "$work/violations" "${readonly_pkgs[@]}" "${meta[@]}" "${served[@]}"
if grep -F "$module" "$work/violations" >&2; then
  say "the types above break the API conventions"
  exit 1
fi

say "clientset, listers, informers"
mkdir -p "$generated"
"$bin/client-gen" --go-header-file "$header" --clientset-name versioned --fake-clientset=false \
  --input-base "$module/$apis" --input fleet/v1 --input fleet/v1beta1 \
  --output-dir "$generated/clientset" --output-pkg "$module/$generated/clientset"
"$bin/lister-gen" --go-header-file "$header" \
  --output-dir "$generated/listers" --output-pkg "$module/$generated/listers" "${served[@]}"
"$bin/informer-gen" --go-header-file "$header" \
  --versioned-clientset-package "$module/$generated/clientset/versioned" \
  --listers-package "$module/$generated/listers" \
  --output-dir "$generated/informers" --output-pkg "$module/$generated/informers" "${served[@]}"

say "examples/minimal"
# With the script that a copy of the example has. The example's module names the
# packages of this one, which its generators do not read, by a replace line.
mkdir -p "$copy/$minimal/api"
cp "$root/$minimal/go.mod" "$root/$minimal/go.sum" "$root/$minimal/generate.sh" "$copy/$minimal/"
cp -R "$root/$minimal/api/v1" "$copy/$minimal/api/v1"
find "$copy/$minimal/api" -name 'zz_generated.*.go' -delete
DEEPCOPY_GEN="$bin/deepcopy-gen" OPENAPI_GEN="$bin/openapi-gen" "$copy/$minimal/generate.sh"

# Every generated file, by its path from the root: those of tree $1.
list() {
  (cd "$1" && { find "$apis" "$minimal" -name 'zz_generated.*.go'; find "$generated" -type f -name "*.go"; } 2>/dev/null | LC_ALL=C sort)
}

stale=0
while read -r file; do
  cmp -s "$copy/$file" "$root/$file" && continue
  stale=$((stale + 1))
  if $verify; then
    say "out of date: $file"
    diff -u "$root/$file" "$copy/$file" 2>&1 | head -n 40 >&2 || true
  else
    mkdir -p "$root/$(dirname "$file")"
    cp "$copy/$file" "$root/$file"
    say "wrote $file"
  fi
done < <({ list "$copy"; list "$root"; } | LC_ALL=C sort | uniq -d; comm -23 <(list "$copy") <(list "$root"))

while read -r file; do
  stale=$((stale + 1))
  if $verify; then
    say "no longer generated: $file"
  else
    rm -f "$root/$file"
    say "removed $file"
  fi
done < <(comm -13 <(list "$copy") <(list "$root"))

if $verify && [ "$stale" -gt 0 ]; then
  say "$stale files are out of date: run hack/generate.sh"
  exit 1
fi
say "$(list "$copy" | wc -l | tr -d ' ') files are up to date"
