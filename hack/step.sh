#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command as a named step and says how long it took, and how many seconds
# of processor: on two of them, twice as many when the step never waits.
#
#   hack/step.sh NAME COMMAND [ARGUMENT]...
#
# The time, and whether the step failed, is also added to the file that STEPS
# names, if it is set, and what the failed tests said to STEPS.failed: .ci/run prints
# both at its end. Exits as the command does.
set -u

name=$1
shift
printf -- '-- %s\n' "$name"
begun=$(date +%s)
if [ -n "${STEPS:-}" ]; then
  said=$(mktemp)
  exec 3> >(exec tee "$said")
  tee=$!
  "$@" >&3 2>&1
  status=$?
  exec 3>&-
  # A process that the command has left keeps tee.
  timeout 10 tail --pid="$tee" -f /dev/null
  if [ "$status" != 0 ]; then
    { printf -- '-- %s\n' "$name"; { grep -E -A 20 '^ *--- FAIL|^panic: |^WARNING: DATA RACE' "$said" || tail -n 20 "$said"; } | cut -c1-500 | head -n 100; } >>"$STEPS.failed"
  fi
  rm -f "$said"
else
  "$@"
  status=$?
fi
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
