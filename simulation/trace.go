// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"strings"
)

// Trace is what has happened, one line for each operation and, indented, for each
// observation. A schedule of the kind Deterministic always has the same trace.
type Trace struct{ lines []string }

func (t *Trace) operation(n int, line string) {
	t.lines = append(t.lines, fmt.Sprintf("%3d %s", n, line))
}

func (t *Trace) observed(who, what string) { t.lines = append(t.lines, "      "+who+": "+what) }

// Lines are all lines so far.
func (t *Trace) Lines() []string { return t.lines }

// String is the whole trace.
func (t *Trace) String() string { return strings.Join(t.lines, "\n") + "\n" }
