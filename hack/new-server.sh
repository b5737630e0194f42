#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Makes a module of its own out of examples/minimal, or out of examples/computed, which is
# then called computed, outside of this checkout:
#
#   hack/new-server.sh MODULE DIRECTORY
#   hack/new-server.sh computed DIRECTORY
#
# The copy finds watchcache in this checkout, by a replace line in its go.mod.
# Once watchcache is published, gonew does the same without a checkout; see
# examples/minimal/README.md.
set -eu
[ $# = 2 ] || { echo "usage: hack/new-server.sh MODULE|computed DIRECTORY" >&2; exit 2; }
module=$1 directory=$2 example=minimal
[ "$module" != computed ] || example=computed
root="$(cd "$(dirname "$0")/.." && pwd -P)"
watchcache=github.com/kube-watchcache/watchcache
old="$watchcache/examples/$example"

if [ -e "$directory" ]; then
	echo "hack/new-server.sh: $directory exists already: name another directory, or remove it" >&2
	exit 1
fi
mkdir -p "$directory"
(cd "$root/examples/$example" && tar -cf - --exclude=./.run --exclude=./apiserver.local.config .) | (cd "$directory" && tar -xf -)
cd "$directory"
go mod edit -module "$module" -replace "$watchcache=$root"
find . -name '*.go' | while read -r file; do
	sed "s|\"$old\([\"/]\)|\"$module\1|" "$file" >"$file.new"
	mv "$file.new" "$file"
done
echo "made the module $module in $directory, with the watchcache of $root"
