// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// supervised is a clause that is given up if it hangs. Its test then fails, and
// the other clauses are judged.
type supervised struct {
	limit time.Duration
	// ended is closed when the clause has ended, given up or not.
	ended chan struct{}
	// givenUp: the clause's test goes on without the clause.
	givenUp atomic.Bool
	// closing bounds the time for closing the backend of a clause that has ended or
	// was given up.
	closing *time.Timer
}

// supervise runs a clause on a goroutine of its own, and returns when the clause
// has ended or was given up. A clause that was given up keeps its goroutine, for
// nothing can end one that waits for a backend. The clause may call any method of
// t: FailNow and SkipNow end the goroutine.
func (r *runner) supervise(t *testing.T, name string, c clause, f *fixture) *supervised {
	s := &supervised{limit: f.backend.clauseTimeout(), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		defer func() {
			// A clause that goes on after its test has ended may call its t, which
			// panics then. Nobody waits for what the clause would say.
			if s.givenUp.Load() {
				_ = recover()
			}
		}()
		c.run(t, f)
	}()
	hangs := time.NewTimer(s.limit)
	defer hangs.Stop()
	select {
	case <-s.ended:
	case <-hangs.C:
		s.givenUp.Store(true)
		r.note(&r.mu.hung, name, "has not ended after "+s.limit.String())
		t.Errorf("%s hangs: it has not ended %s after its beginning, although the context of its requests has. It is given up; the others are judged. All goroutines:\n%s",
			name, s.limit, goroutines())
	}
	s.closing = time.AfterFunc(s.limit, func() {
		fmt.Print(r.report())
		fmt.Printf("conformance: All goroutines:\n%s", goroutines())
		panic(fmt.Sprintf("conformance: the backend of %s has not been closed %s after the clause was done: what follows is not judged", name, s.limit))
	})
	return s
}

// closed is called when the backend is closed. A request that hung may return
// because of that; then its clause is awaited, for it may have more to say.
func (s *supervised) closed(patience time.Duration) {
	s.closing.Stop()
	if !s.givenUp.Load() {
		return
	}
	select {
	case <-s.ended:
	case <-time.After(patience):
	}
}

// goroutines returns the stacks of all goroutines.
func goroutines() string {
	var stacks strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 2) // a Builder takes all
	return stacks.String()
}
