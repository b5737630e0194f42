#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compiles a command and reports its progress: from an empty cache, the libraries of
# Kubernetes take minutes.
#
#   hack/compile.sh OUTPUT PACKAGE
#
# GO is the go command. The exit status is that of go build.
set -euo pipefail
go=${GO:-go}

# The packages that go build will compile: all others are in the build cache.
stale=$("$go" list -deps -f '{{if .Stale}}{{.ImportPath}}{{end}}' "$2" | grep -c . || true)
if [ "$stale" -gt 1 ]; then
  echo "compiling $stale packages of $2" >&2
fi
# go build -v prints the import path of each package that it begins to compile.
begun=0
reported=0
"$go" build -v -o "$1" "$2" 2>&1 | while IFS= read -r line; do
  case $line in
  *[\ :]*) echo "$line" ;;
  *)
    begun=$((begun + 1))
    if [ $((begun - reported)) -ge 100 ]; then
      reported=$begun
      echo "compiling: $begun of $stale packages"
    fi
    ;;
  esac
done >&2
