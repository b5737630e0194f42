// SPDX-License-Identifier: Apache-2.0

package match

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// A query that the state lets go on, although events have left the window, has missed
// none that affects it, whatever it selects by; however few values are remembered.
func TestQueriesThatGoOnBeyondTheWindowMissNothing(t *testing.T) {
	x := podIndexes()
	queries := []Query{
		ask(t, "/pods/", "", ""), ask(t, "/pods/a/one", "", ""), ask(t, "/pods/a/", "", ""), ask(t, "/pods/b/one/", "", ""), ask(t, "/pods/", "app=1", ""),
		ask(t, "/pods/", "app in (1,2)", ""), ask(t, "/pods/b/", "app=3", ""), ask(t, "/pods/", "", "spec.nodeName=n1"),
		ask(t, "/pods/", "", "spec.nodeName="), ask(t, "/pods/c/", "app!=2", "spec.nodeName!=n1"), ask(t, "/pods/", "gone=1", ""),
		ask(t, "/pods/", "app=1", "spec.nodeName=n2"), ask(t, "/pods/", "", "metadata.namespace=b"), ask(t, "/pods/d/", "", ""),
	}
	beyond := map[Name]int{}
	for seed := range uint64(150) {
		random := rand.New(rand.NewPCG(seed, 16))
		state := watchcache.New(watchcache.Config{
			History: 20, WindowBytes: 1 << 40, Indexes: x.OfState(),
			Floors: x.Floors(), FloorValues: []int{0, 1, 2, 100}[seed%4],
		})
		rv, present := uint64(1), map[string]bool{}
		state.Replace(nil, rv)
		start, all := state.Stats().Start, []*watchcache.Event(nil) // since the last list
		for range 150 {
			rv++
			if random.IntN(100) == 0 {
				state.Replace(nil, rv)
				start, all, present = state.Stats().Start, nil, map[string]bool{}
				continue
			}
			all = append(all, randomChange(t, random, state, rv, present))
			stats, q := state.Stats(), queries[random.IntN(len(queries))]
			of, missed := x.Interest(&q), func(which func(*watchcache.Event) bool) bool {
				return slices.ContainsFunc(all[:stats.Oldest-start], func(e *watchcache.Event) bool { return which(e) && q.Outcome(e, false) != Unaffected })
			}
			from := all[0].RV - 1 + random.Uint64N(rv-all[0].RV+2)
			if _, far, err := state.PositionFor(from, of); err == nil {
				require.False(t, missed(func(e *watchcache.Event) bool { return e.RV > from }), "seed %d: %+v has missed events after %d", seed, q.Name(), from)
				if far {
					beyond[q.Name()]++
				}
			}
			at := start + watchcache.Position(random.IntN(len(all)+1))
			if _, _, err := state.Resume(at, of); err == nil {
				require.False(t, missed(func(e *watchcache.Event) bool { return e.Position >= at }), "seed %d: %+v has missed events from position %d", seed, q.Name(), at)
			}
		}
	}
	for _, q := range queries {
		selective := q.Key() != "/pods/" || strings.Contains(q.Name().Label, "app") || strings.Contains(q.Name().Field, "nodeName")
		require.Equal(t, selective, beyond[q.Name()] > 0, "%+v", q.Name())
	}
}

// An attribute that several indexes are by has one floor, and a query for a key is
// for that key's events alone.
func TestFloorsAndSlices(t *testing.T) {
	none := func(any) ([]string, error) { return nil, nil }
	config := Config{Prefix: "/pods/", Triggers: storage.IndexerFuncs{}, Indexers: cache.Indexers{}}
	for _, field := range []string{"x", "y", "z"} {
		config.Triggers[field] = func(runtime.Object) string { return "" }
		config.Indexers[storage.FieldIndex(field)] = none
	}
	x := NewIndexes(config)
	var names []string
	for _, floor := range x.Floors() {
		names = append(names, floor.Name)
	}
	slices.Sort(names)
	require.Equal(t, []string{"", "x", "y", "z"}, names)

	key, scope := ask(t, "/pods/a/one", "", ""), ask(t, "/pods/a/", "", "x=1")
	require.Equal(t, "/pods/a/one", x.Interest(&key).Key)
	of := x.Interest(&scope)
	require.Empty(t, of.Key)
	require.Len(t, of.Required, 2)
	require.Equal(t, []string{"/pods/a/"}, of.Required[0].Values)
	require.Equal(t, []string{"1"}, of.Required[1].Values)
}

// randomChange makes a change of one of a few pods, most of them in one namespace.
func randomChange(t *testing.T, random *rand.Rand, state *watchcache.State, rv uint64, present map[string]bool) *watchcache.Event {
	keys := []string{"a/one", "a/two", "b/one", "b/two", "c/one", "c/two", "c/three", "c/four"}
	key := keys[min(random.IntN(30), len(keys)-1)]
	attributes := []string{"spec.nodeName=" + []string{"", "n1", "n2", "n3", "n3", "n3", "n3"}[random.IntN(7)]}
	if app := random.IntN(12); app > 0 {
		attributes = append(attributes, "app="+strconv.Itoa(min(app, 4)))
	}
	change := watchcache.Change{Type: watchcache.Added, Element: pod(key, rv, attributes...), RV: rv, Received: int64(rv), Whole: true}
	if present[key] {
		change.Type = watchcache.Modified
		if random.IntN(6) == 0 {
			change.Type = watchcache.Deleted
		}
	}
	present[key] = change.Type != watchcache.Deleted
	applied, err := state.Apply(change)
	require.NoError(t, err)
	state.Dispatched(applied.Event.Position + 1)
	return applied.Event
}
