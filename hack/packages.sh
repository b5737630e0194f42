#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Debian packages that commands come from, unless they are there.
#
#   hack/packages.sh COMMAND[=PACKAGE]...
#
# A command without a package is that of the package of its name. Installing takes
# apt-get and root; without them one line says what to install, and the exit status
# is 1.
set -u

missing=
for wanted in "$@"; do
  command -v "${wanted%%=*}" >/dev/null 2>&1 || missing="$missing ${wanted#*=}"
done
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
  printf 'packages: install%s: it takes apt-get and root, which are not both here\n' "$missing" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
{
  # The package of Prometheus must not start its own server beside those of tests.
  # shellcheck disable=SC2086
  apt-get update -qq && RUNLEVEL=1 apt-get install -qq -y --no-install-recommends $missing
} >&2
