// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// holdsOn is a storage whose GETs return when it is closed, and not before, and
// take no notice of their contexts.
type holdsOn struct{ closed chan struct{} }

func (h holdsOn) get(memory, context.Context, string, storage.GetOptions, runtime.Object) error {
	<-h.closed
	return storage.NewInternalError(fmt.Errorf("closed"))
}

// hangs are clauses that do not end, by what they wait for. Each must be given up,
// and the others be judged.
var hangs = map[string]struct {
	run func(t *testing.T, f *fixture)
	// close is what closes the backend.
	close func(h holdsOn)
	says  []string
}{
	"a GET that takes no notice of its context": {
		run:   func(t *testing.T, f *fixture) { f.get(t, f.raw, Prefix+"a/one", "") },
		close: func(holdsOn) {},
	},
	"a GET that returns when the backend is closed": {
		run:   func(t *testing.T, f *fixture) { f.get(t, f.raw, Prefix+"a/one", "") },
		close: func(h holdsOn) { close(h.closed) },
		says:  []string{"closed"}, // the clause says so in time
	},
	"a clause that goes on when its test is over": {
		run: func(t *testing.T, _ *fixture) {
			<-later
			defer close(muchLater)
			assert.Fail(t, "nobody waits for this")
		},
		close: func(holdsOn) {},
	},
}

// The second clause of each case closes later, and waits for muchLater where the
// first one does something then.
var later, muchLater = make(chan struct{}), make(chan struct{})

// TestHangs runs each clause that hangs, and after it one that holds, in a process
// of its own.
func TestHangs(t *testing.T) {
	for name, c := range hangs {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel() // they wait for time to pass
			if !strings.HasPrefix(os.Getenv(childOf), t.Name()) {
				output, failed, err := judgeInChild(t, 5*time.Minute)
				require.NoError(t, err, output)
				require.True(t, failed, output)
				for _, word := range append(c.says, "Storage/Endless hangs: it has not ended 4s after its beginning",
					"conformance.init.func", // the clause is among the goroutines
					"Storage/Endless is broken. The rule: it ends",
					": 1 clauses hold, 1 fail, 0 deviate as declared, 0 were skipped",
					"conformance: hangs: Storage/Endless: has not ended after 4s") {
					require.Contains(t, output, word)
				}
				require.NotContains(t, output, "panic:")
				return
			}
			announce(t, begun)
			r := &runner{test: t.Name(), all: []group{{"Storage", []clause{
				{name: "Endless", rule: "it ends", alone: true, run: c.run},
				{name: "Other", rule: "it holds", alone: true, run: func(*testing.T, *fixture) {
					close(later)
					if strings.Contains(t.Name(), "goes_on") {
						<-muchLater
					}
				}},
			}}}, open: openHolding(c.close)}
			r.judgeAll(t)
			fmt.Print(r.report())
		})
	}
}

func openHolding(close func(holdsOn)) func(t *testing.T) Backend {
	return func(t *testing.T) Backend {
		h, m := holdsOn{make(chan struct{})}, newMemory()
		t.Cleanup(func() { close(h) })
		b := m.backend(broken{memory: m, get: h.get})
		b.Patience, b.ClauseTimeout = time.Second, 4*time.Second
		return b
	}
}
