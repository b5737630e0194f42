#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Debian packages that commands come from, unless they are there.
#
#   hack/packages.sh COMMAND[|COMMAND]...[=PACKAGE]...
#
# Any one of several commands will do. Without a package it is that of the command's
# name. Installing needs apt-get and root; without them one line says what to install,
# and the exit status is 1.
set -u

found() {
  for name in $(echo "$1" | tr '|' ' '); do
    command -v "$name" >/dev/null 2>&1 && return
  done
  return 1
}

missing=
for wanted in "$@"; do
  found "${wanted%%=*}" || missing="$missing ${wanted#*=}"
done
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
  printf 'packages: install%s: this needs apt-get and root, which are not both here\n' "$missing" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
{
  # The package of Prometheus must not start its own server beside those of tests.
  # shellcheck disable=SC2086
  apt-get update -qq && RUNLEVEL=1 apt-get install -qq -y --no-install-recommends $missing
} >&2
