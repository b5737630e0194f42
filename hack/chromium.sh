#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs Debian's chromium for the tests in integration/browser, unless there
# is one. Says in one line why it can't, and fails.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
	if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
fail() { printf 'no chromium, and %s: integration/browser needs it\n' "$*" >&2; exit 1; }
command -v apt-get >/dev/null 2>&1 || fail "no apt-get to install it"
[ "$(id -u)" = 0 ] || fail "only root may install it"
export DEBIAN_FRONTEND=noninteractive
{ apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } || fail "apt-get could not install it"
