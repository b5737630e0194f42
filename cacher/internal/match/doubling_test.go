// SPDX-License-Identifier: Apache-2.0

//go:build unix && !race && !invariants

// The race detector and the invariants take time of their own.

package match

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/internal/doubling"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// What n watchers, events, values or elements cost is n log n (regression 178).
func TestWorkIsLinear(t *testing.T) {
	groups := func(query func(i int) Query) func(n int) func() {
		return func(n int) func() {
			all, queries := NewGroups[int](podIndexes()), make([]Query, n)
			for i := range queries {
				queries[i] = query(i)
			}
			event := &watchcache.Event{Element: pod("a/one", 1, "app=1", "label-1=1")}
			return func() {
				joined := make([]*Group[int], n)
				for i := range queries {
					joined[i] = all.Join(queries[i].Name(), queries[i])
					if joined[i].users == 1 {
						require.True(t, all.File(joined[i]))
					}
				}
				for range 5 {
					event.Position++
					all.Candidates(event, func(*Group[int]) {})
				}
				slices.SortFunc(joined, func(a, b *Group[int]) int { return strings.Compare(a.Name.Label, b.Name.Label) })
				for _, g := range joined {
					if g.users == 1 {
						all.Unfile(g)
					}
					all.Leave(g)
				}
				require.Empty(t, all.filed)
			}
		}
	}
	postings := func(values int, resumes int) func(n int) func() {
		return func(n int) func() {
			x := podIndexes()
			state := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1 << 40, Indexes: x.OfState()})
			state.Replace(nil, 1)
			for i := range n {
				rv := uint64(2 + i)
				_, err := state.Apply(watchcache.Change{Type: watchcache.Added, Element: pod(fmt.Sprintf("a/%d", i), rv, fmt.Sprintf("app=%d", i%min(n, values))), RV: rv, Whole: true})
				require.NoError(t, err)
			}
			q := ask(t, "/pods/", "app=1", "")
			return func() {
				p := NewPostings(x, state)
				for range resumes {
					var buf [32]*watchcache.Event
					for at := state.Stats().Oldest; at < state.Stats().Next; {
						_, to, ok := p.Events(&q, at, buf[:])
						require.True(t, ok)
						at = to
					}
				}
			}
		}
	}
	for name, prepare := range map[string]func(n int) func(){
		"groups of a value each": groups(func(i int) Query { return ask(t, "/pods/", fmt.Sprint("app=", i), "") }),
		"groups of one value":    groups(func(i int) Query { return ask(t, "/pods/", fmt.Sprintf("app=1,other!=%d", i), "") }),
		"groups of eight values": groups(func(i int) Query { return ask(t, "/pods/", fmt.Sprintf("app in (1,2,3,4,5,6,7,%d)", 8+i), "") }),
		"groups of an attribute": groups(func(i int) Query { return ask(t, "/pods/", fmt.Sprintf("label-%d=1", i), "") }),
		"groups of no equality":  groups(func(i int) Query { return ask(t, "/pods/", fmt.Sprintf("app!=%d", i), "") }),
		"groups of a key":        groups(func(i int) Query { return ask(t, fmt.Sprintf("/pods/a/%d", i), "", "") }),
		"watchers of one group":  groups(func(int) Query { return ask(t, "/pods/", "app=1", "") }),
		"events of one value":    postings(2, 20),
		"events of a value each": postings(1<<40, 5),
		"reads that miss many labels": func(n int) func() {
			a := newAdapted(8, 100)
			queries := make([]Query, 2*n)
			for i := range queries {
				queries[i] = ask(t, "/pods/", fmt.Sprintf("app=%d,other-%d=1", i, i), "")
			}
			var missed blame
			missed[0], missed[1] = 1, 1
			return func() {
				for i := range queries {
					a.x.countMissed(&queries[i], &missed)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) { doubling.Check(t, 200, prepare) })
	}
}
