// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// only returns one clause of all.
func only(name string) []group {
	for _, g := range groups() {
		for _, c := range g.clauses {
			if g.name+"/"+c.name == name {
				return []group{{g.name, []clause{c}}}
			}
		}
	}
	return nil
}

// misuses are what is given to Run, and what it says.
var misuses = map[string]struct {
	says    string
	clauses []group
	open    func(b *Backend, m memory)
}{
	"a deviation that holds": {
		says:    "Storage/CurrentVersion is declared as a deviation (it was slow), and holds: remove the entry. The rule: GetCurrentResourceVersion",
		clauses: only("Storage/CurrentVersion"),
		open:    func(b *Backend, _ memory) { b.Deviations = map[string]string{"Storage/CurrentVersion": "it was slow"} },
	},
	"a deviation of nothing": {
		says: `Backend.Deviations names "Storage/Nothing": there is no such clause`,
		open: func(b *Backend, _ memory) { b.Deviations = map[string]string{"Storage/Nothing": "nothing"} },
	},
	"a deviation without a reason": {
		says:    `Backend.Deviations["Storage/EventOnce"] is empty: it is the reason`,
		clauses: only("Storage/EventOnce"),
		open:    func(b *Backend, _ memory) { b.Deviations = map[string]string{"Storage/EventOnce": ""} },
	},
	"a deviation of what is not judged": {
		says:    `Backend.Deviations names "Storage/ProgressOfIdleResource", which is not judged: Backend.Touch is nil`,
		clauses: only("Storage/ProgressOfIdleResource"),
		open: func(b *Backend, _ memory) {
			b.Touch, b.Deviations = nil, map[string]string{"Storage/ProgressOfIdleResource": "it can't"}
		},
	},
	"no storage": {
		says:    "Backend.Storage is nil: it is required",
		clauses: only("Storage/EventOnce"), // must not be tried
		open:    func(b *Backend, _ memory) { b.Storage = nil },
	},
	"no patience": {
		says: "Backend.Patience is -1s: it is negative",
		open: func(b *Backend, _ memory) { b.Patience = -time.Second },
	},
	"a storage that is not empty": {
		says: "Backend.Storage has 1 objects, /pods/a/1 the first of them: it must be empty",
		open: func(_ *Backend, m memory) { m.Put(Prefix+"a/1", poddata.Pod("a/1")) },
	},
	"a clause timeout below what requests may take": {
		says: "Backend.ClauseTimeout is 3s: the requests of a clause may take 4s, four times Patience",
		open: func(b *Backend, _ memory) { b.Patience, b.ClauseTimeout = time.Second, 3*time.Second },
	},
}

// TestMisuse looks at what makes Run fail though no rule is broken. Each case
// fails on purpose, in a process of its own.
func TestMisuse(t *testing.T) {
	for name, c := range misuses {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			if !strings.HasPrefix(os.Getenv(childOf), t.Name()) {
				output, failed, err := judgeInChild(t, time.Minute)
				require.NoError(t, err, output)
				require.True(t, failed, output)
				require.Contains(t, output, c.says)
				require.NotContains(t, output, "nil pointer")
				return
			}
			announce(t, begun)
			r := &runner{test: t.Name(), all: c.clauses, open: func(*testing.T) Backend {
				m := newMemory()
				b := m.backend(m)
				c.open(&b, m)
				return b
			}}
			r.run(t)
		})
	}
}

// TestLacks runs a backend that can nothing but store: what needs more is
// skipped, and said to be.
func TestLacks(t *testing.T) {
	needy, want := []group{}, 0
	for _, g := range ours() {
		var some []clause
		for _, c := range g.clauses {
			if c.needs&^(initialEvents|writes) != 0 {
				some = append(some, c)
			}
		}
		needy, want = append(needy, group{g.name, some}), want+len(some)
	}
	r := &runner{test: t.Name(), all: needy, open: func(*testing.T) Backend {
		return Backend{Storage: newMemory(), WatchProgress: func() bool { return false }}
	}}
	r.run(t)
	require.NotZero(t, want)
	require.Len(t, r.mu.skipped, want, r.report())
	require.Contains(t, r.report(), "conformance: skipped: Compaction/StorageList: Backend.Compact is nil\n")
	require.Contains(t, r.report(), "conformance: skipped: Storage/Progress: the backend does not claim to answer RequestWatchProgress\n")
}
