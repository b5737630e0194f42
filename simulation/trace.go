// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"strings"
)

// Trace is what has happened, one line for each operation and, indented, for each
// observation. A schedule of the kind Deterministic always has the same trace. The
// lines are made when they are asked for, because of most schedules nobody wants
// to see them.
type Trace struct{ entries []entry }

// entry is one line: of an operation if who is empty.
type entry struct {
	n    int
	who  string
	what fmt.Stringer
}

// text is a line that is made already.
type text string

func (t text) String() string { return string(t) }

// happened is an operation with the resourceVersion that it names, 0 if none.
type happened struct {
	Operation
	rv uint64
}

func (h happened) String() string {
	at := ""
	if h.At.Set {
		at = fmt.Sprint(h.rv)
	}
	return h.line(at)
}

func (t *Trace) operation(n int, what fmt.Stringer) {
	t.entries = append(t.entries, entry{n: n, what: what})
}

// observed notes what a client, or the cache, has shown, which must not change any
// more.
func (t *Trace) observed(who string, what fmt.Stringer) {
	t.entries = append(t.entries, entry{who: who, what: what})
}

// Lines are all lines so far.
func (t *Trace) Lines() (lines []string) {
	for _, e := range t.entries {
		if e.who == "" {
			lines = append(lines, fmt.Sprintf("%3d %s", e.n, e.what))
		} else {
			lines = append(lines, "      "+e.who+": "+e.what.String())
		}
	}
	return lines
}

// String is the whole trace.
func (t *Trace) String() string { return strings.Join(t.Lines(), "\n") + "\n" }
