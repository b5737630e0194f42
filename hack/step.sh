#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command as a named step and says how long it took, and how many seconds
# of processor: on two of them, twice as many when the step never waits.
#
#   hack/step.sh NAME COMMAND [ARGUMENT]...
#
# The time, and whether the step failed, is also added to the file that STEPS
# names, if it is set: .ci/run makes a table of it. Exits as the command does.
set -u

name=$1
shift
printf -- '-- %s\n' "$name"
begun=$(date +%s)
"$@"
status=$?
took=$(($(date +%s) - begun))
# The second line of times is of the commands that have ended: "1m2.34s 0m5.67s".
# It is that of this shell alone, therefore no pipe.
times=$(mktemp)
times >"$times"
cpu=$(($(sed -n '2{s/m/*60+/g;s/\.[0-9]*s//g;s/ /+/;p;}' "$times")))
rm -f "$times"
outcome=
[ "$status" = 0 ] || outcome=", FAILED"
printf '== %s: %d s, %d s of CPU%s\n' "$name" "$took" "$cpu" "$outcome"
if [ -n "${STEPS:-}" ]; then
  printf '%s\t%s\t%s\n' "$took" "$cpu" "$name$outcome" >>"$STEPS"
fi
exit "$status"
