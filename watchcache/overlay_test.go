// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// TestEarlierVersions compares every version of a long window, in which keys
// come, change, go and come again, several of them at one resourceVersion,
// with copies that were made on the way.
func TestEarlierVersions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := newDriver(t, rt)
		d.state, d.model = watchcache.New(roomy), newModel(t, roomy)
		if rapid.Bool().Draw(rt, "from a list") {
			d.replace()
		}
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			d.applyChange(d.fitting())
			if rapid.IntRange(0, 9).Draw(rt, "read on the way") == 0 {
				d.checkAt(rapid.Uint64Range(d.model.versions[0].rv, d.model.latest().rv).Draw(rt, "rv"))
			}
		}
		for rv := d.model.versions[0].rv; rv <= d.model.latest().rv; rv++ {
			d.checkAt(rv)
		}
		rv := rapid.Uint64Range(d.model.versions[0].rv, d.model.shown).Draw(rt, "rv of a walk")
		d.walk(at(t, d.state, rv), d.model.at(rv), rapid.IntRange(1, 4).Draw(rt, "page size"))
	})
}

// walk pages through a snapshot, by key and by each index. Regression 50: the
// key to go on from means the same in every kind of snapshot, the first key
// that was not read, so that no element comes twice and none is skipped.
func (d *driver) walk(s *watchcache.Snapshot, want version, size int) {
	pages := func(read func(from string, yield func(*watchcache.Element) bool)) (all []*watchcache.Element) {
		for from, more := "", true; more; {
			var page []*watchcache.Element
			more = false
			read(from, func(e *watchcache.Element) bool {
				if more = len(page) == size; !more {
					page = append(page, e)
				}
				return !more
			})
			all = append(all, page...)
			if more {
				from = page[len(page)-1].Key + "\x00"
			}
		}
		return all
	}
	req := d.require()
	req.True(slices.Equal(want.ranged("", "", everything), pages(func(from string, yield func(*watchcache.Element) bool) {
		s.Range("", from, yield)
	})))
	for _, value := range []string{"0", "1", "2"} {
		req.True(slices.Equal(want.ranged("", "", func(e *watchcache.Element) bool { return e.Labels["value"] == value }),
			pages(func(from string, yield func(*watchcache.Element) bool) { s.RangeIndex("value", value, "", from, yield) })))
	}
	req.True(slices.Equal(want.ranged("", "", func(e *watchcache.Element) bool { return len(wordsOf(e)) > 0 }),
		pages(func(from string, yield func(*watchcache.Element) bool) {
			s.RangeIndexAny("words", []string{"y", "x"}, "", from, yield)
		})))
}

// More events and elements than At reads at a time.
func TestEarlierVersionOfMany(t *testing.T) {
	const keys, events = 6000, 20_000
	random := rand.New(rand.NewPCG(1, 2))
	s := watchcache.New(watchcache.Config{WindowBytes: 1 << 40, MinEvents: events, Indexes: indexes})
	present := map[string]*watchcache.Element{}
	versions := map[uint64]map[string]*watchcache.Element{}
	for rv := uint64(1); rv <= events; rv++ {
		key := fmt.Sprintf("/r/%04d", random.IntN(keys))
		c := added(key, rv, fmt.Sprint(random.IntN(50)))
		switch {
		case present[key] != nil && random.IntN(3) == 0:
			c.Type = watchcache.Deleted
			delete(present, key)
		case present[key] != nil:
			c.Type = watchcache.Modified
			present[key] = c.Element
		default:
			present[key] = c.Element
		}
		apply(t, s, c)
		if rv%4500 == 0 {
			versions[rv] = maps.Clone(present)
		}
	}
	for rv, elements := range versions {
		v, snapshot := version{rv, elements}, at(t, s, rv)
		require.Equal(t, len(elements), snapshot.Len())
		require.True(t, slices.Equal(v.ranged("", "", everything), snapshot.All()))
		var found []*watchcache.Element
		snapshot.RangeIndex("value", "7", "", "", func(e *watchcache.Element) bool { found = append(found, e); return true })
		require.True(t, slices.Equal(v.ranged("", "", func(e *watchcache.Element) bool { return e.Labels["value"] == "7" }), found))
		for range 100 {
			from := fmt.Sprintf("/r/%04d", random.IntN(keys))
			require.Equal(t, len(v.ranged("/r/", from, everything)), snapshot.Count("/r/", from))
			require.Same(t, elements[from], snapshot.Get(from))
		}
	}
}
