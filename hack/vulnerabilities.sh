#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Looks for known vulnerabilities in what a server links of this module and of others, in
# the database that GOVULNDB names (https://vuln.go.dev). Without a database, which is
# the only error that is none, one line says so here and at the end of the target.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

"${GO:-go}" build -C hack/tools -o ../../bin/govulncheck golang.org/x/vuln/cmd/govulncheck
said=$(bin/govulncheck ${GOVULNDB:+-db "$GOVULNDB"} ./server ./informer ./storage/... 2>&1) && status=0 || status=$?
printf '%s\n' "$said"
if [ "$status" != 0 ] && grep -q 'fetching vulnerabilities' <<<"$said"; then
	echo "vulnerabilities: not looked for, the database can't be reached: GOVULNDB names another one, as file:///DIRECTORY" | tee -a "${SKIPPED:-/dev/null}"
	exit 0
fi
exit "$status"
