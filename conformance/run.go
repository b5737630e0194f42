// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// clause is one rule, and the test of it.
type clause struct {
	name string
	// rule is what holds if the test passes, in a sentence.
	rule string
	// needs is what the backend must be able to do.
	needs needs
	// alone: no other clause runs at the same time, because it changes what is
	// process-wide, or counts on nobody else's writing.
	alone bool
	// races: a backend that breaks the rule does so now and then.
	races bool
	run   func(t *testing.T, f *fixture)
}

// group is clauses about one thing, or at one time.
type group struct {
	name    string
	clauses []clause
}

// groups returns all clauses. Compaction comes last: on a shared server it
// takes the others' history, too.
func groups() []group {
	return []group{
		{"Storage", slices.Concat(storageSuites(), onBoth(rawStorage), storageClauses())},
		{"Cacher", slices.Concat(cacherSuites(), onBoth(throughCacher), cacherClauses())},
		{"Compaction", compactionClauses()},
	}
}

// Run judges a backend: each clause is a subtest, "GROUP/CLAUSE", and the
// package comment lists them. open is called for each, also from several
// goroutines at a time. Each call opens a backend that is empty and registers what
// closes it with t.Cleanup. Backends may share a server, if none sees the
// objects of another.
//
// When all clauses have run, a line on standard output says how many there
// were, and names those that hang, were skipped or deviate as declared. A clause
// that hangs fails, with the stacks of all goroutines; see Backend.ClauseTimeout.
func Run(t *testing.T, open func(t *testing.T) Backend) {
	t.Helper()
	r := &runner{open: open, test: t.Name(), all: groups()}
	r.run(t)
	fmt.Print(r.report())
}

type runner struct {
	open func(t *testing.T) Backend
	test string
	all  []group

	mu struct {
		sync.Mutex
		hold, fail             int
		skipped, deviate, hung []string // "NAME: reason"
		// output is what deviating clauses said in their processes.
		output map[string]string
	}
}

// run judges all clauses, if what open gives can be judged, and returns when
// all are done.
func (r *runner) run(t *testing.T) {
	t.Helper()
	if t.Run("Backend", r.checkBackend) {
		r.judgeAll(t)
	}
}

func (r *runner) judgeAll(t *testing.T) {
	t.Helper()
	r.mu.output = make(map[string]string)
	for _, g := range r.all {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.clauses {
				t.Run(c.name, func(t *testing.T) { r.judge(t, g.name+"/"+c.name, c) })
			}
		})
	}
}

// checkBackend looks at what open gives before anything is judged.
func (r *runner) checkBackend(t *testing.T) {
	b := r.open(t)
	if b.Storage == nil {
		t.Fatal("Backend.Storage is nil: it is required")
	}
	if b.Patience < 0 {
		t.Fatalf("Backend.Patience is %s: it is negative", b.Patience)
	}
	if least := b.bound(); b.ClauseTimeout != 0 && b.ClauseTimeout < least {
		t.Fatalf("Backend.ClauseTimeout is %s: the requests of a clause may take %s, four times Patience", b.ClauseTimeout, least)
	}
	var names []string
	for _, g := range r.all {
		for _, c := range g.clauses {
			names = append(names, g.name+"/"+c.name)
		}
	}
	for name, reason := range b.Deviations {
		if !slices.Contains(names, name) {
			t.Errorf("Backend.Deviations names %q: there is no such clause", name)
		}
		if reason == "" {
			t.Errorf("Backend.Deviations[%q] is empty: it is the reason", name)
		}
	}
	f := newFixture(t, b)
	if list := f.list(t, f.raw, Prefix, at{}); len(list.Items) > 0 {
		t.Errorf("Backend.Storage has %d objects, %s the first of them: it must be empty", len(list.Items), keyOf(t, &list.Items[0]))
	}
}

// judge runs one clause.
func (r *runner) judge(t *testing.T, name string, c clause) {
	if !c.alone {
		t.Parallel()
	}
	verdict := &verdict{}
	t.Cleanup(func() { r.close(t, name, c, verdict) })
	b := r.open(t)
	_, deviates := b.Deviations[name]
	lack := c.needs.lack(b)
	switch {
	case lack != "" && deviates:
		t.Fatalf("Backend.Deviations names %q, which is not judged: %s", name, lack)
	case lack != "":
		verdict.lacks = true
		r.note(&r.mu.skipped, name, lack)
		t.Skip(lack)
	case deviates && !isChild(t):
		verdict.elsewhere = true
		r.deviates(t, name, c, b)
		return
	}
	f := newFixture(t, b)
	announce(t, begun)
	verdict.begun, verdict.patience = true, f.patience
	verdict.supervised = r.supervise(t, name, c, f)
}

// verdict is how far a clause has come.
type verdict struct {
	// lacks: the backend lacks what the clause needs. elsewhere: another
	// process has judged.
	lacks, elsewhere bool
	// begun: the clause itself was run, with this patience. supervised is set when
	// it has ended or was given up.
	begun      bool
	patience   time.Duration
	supervised *supervised
}

// close counts a clause when it has ended and its backend is closed.
func (r *runner) close(t *testing.T, name string, c clause, v *verdict) {
	if v.supervised != nil {
		v.supervised.closed(v.patience)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case t.Failed():
		r.mu.fail++
		if v.begun {
			t.Logf("%s is broken. The rule: %s.", name, c.rule)
		}
	case t.Skipped() && !v.lacks:
		r.mu.skipped = append(r.mu.skipped, name+": by the function that opens the backend")
	case !v.elsewhere && !v.lacks:
		r.mu.hold++
		announce(t, held)
	}
}

func (r *runner) note(list *[]string, name, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*list = append(*list, name+": "+reason)
}

// report says what came out.
func (r *runner) report() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var s strings.Builder
	fmt.Fprintf(&s, "conformance: %s: %d clauses hold, %d fail, %d deviate as declared, %d were skipped\n",
		r.test, r.mu.hold, r.mu.fail, len(r.mu.deviate), len(r.mu.skipped))
	for _, line := range slices.Sorted(slices.Values(r.mu.hung)) {
		fmt.Fprintf(&s, "conformance: hangs: %s\n", line)
	}
	for _, line := range slices.Sorted(slices.Values(r.mu.deviate)) {
		fmt.Fprintf(&s, "conformance: deviates: %s\n", line)
	}
	for _, line := range slices.Sorted(slices.Values(r.mu.skipped)) {
		fmt.Fprintf(&s, "conformance: skipped: %s\n", line)
	}
	return s.String()
}
