#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Names the tests that a make target skips for want of a program.
#
#   hack/skipped.sh begin [COMMAND=PACKAGE]...  installs what is missing, if that is possible
#   hack/skipped.sh end                         prints the tests that were skipped
#
# Tests write a line each to the file that SKIPPED names; see internal/needs.
set -u

case $1 in
begin)
  shift
  mkdir -p "$(dirname "$SKIPPED")"
  rm -f "$SKIPPED"
  "$(dirname "$0")/packages.sh" "$@" || [ "${CI:-}" != true ]
  ;;
end)
  [ -s "$SKIPPED" ] || exit 0
  echo "SKIPPED, for want of a program:"
  sort -u "$SKIPPED" | sed 's/^/  /'
  ;;
esac
