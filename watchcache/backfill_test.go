// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// remembering is a configuration that has room for what is recalled.
func remembering() watchcache.Config {
	config := roomy
	config.BackfillEvents = 100
	config.Floors, config.FloorValues = floorsByValueAndName, 100
	return config
}

// changeAgain is a change as the source brings it another time.
func changeAgain(c watchcache.Change) watchcache.Change {
	c.Element = element(c.Element.Key, c.RV, c.Element.Labels["value"])
	return c
}

func copies(elements map[string]*watchcache.Element) map[string]*watchcache.Element {
	all := map[string]*watchcache.Element{}
	for key, e := range elements {
		all[key] = element(key, e.RV, e.Labels["value"])
	}
	return all
}

func values(elements map[string]*watchcache.Element) []*watchcache.Element {
	return slices.Collect(maps.Values(elements))
}

// A state that was filled by a list, and recalls what came before, tells the same of
// every version as one that has seen everything.
func TestBackfill(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(rt, what) }
		now := map[string]*watchcache.Element{}
		rv := uint64(10)
		change := func() watchcache.Change {
			key := fmt.Sprintf("k/%c", 'a'+draw("key", 4))
			if rv++; draw("jump", 3) == 0 {
				rv += 2 // others write to the source
			}
			value := fmt.Sprint(draw("value", 3))
			c := added(key, rv, value)
			switch {
			case now[key] != nil && draw("delete", 3) == 0:
				c = deleted(key, rv, now[key].Labels["value"])
				delete(now, key)
				return c
			case now[key] != nil:
				c = modified(key, rv, value)
			}
			now[key] = c.Element
			return c
		}
		for range draw("objects", 4) {
			change()
		}
		from := rv
		seen, filled := watchcache.New(remembering()), watchcache.New(remembering())
		seen.Replace(values(copies(now)), from)
		before := copies(now)

		var changes []watchcache.Change
		for range draw("changes before", 12) {
			changes = append(changes, change())
		}
		rv++
		filled.Replace(values(copies(now)), rv)
		listed := filled.Latest()
		for _, c := range changes {
			apply(t, seen, changeAgain(c))
		}
		require.NoError(rt, seen.Progress(rv))
		later := func() {
			for range draw("changes after", 5) {
				c := change()
				apply(t, seen, changeAgain(c))
				apply(t, filled, changeAgain(c))
			}
		}
		later() // storage goes on while the cache asks for the history
		var again []watchcache.Change
		for _, c := range changes {
			once := changeAgain(c)
			if now := listed.Get(c.Element.Key); now != nil && now.RV == c.RV && c.Type != watchcache.Deleted && draw("listed", 2) == 0 {
				once.Element = now
			}
			again = append(again, once)
		}
		// In two pieces, the later one first.
		first, middle, between := draw("first piece", len(again)+1), from, maps.Clone(before)
		for _, c := range again[:first] {
			middle = c.RV
			if between[c.Element.Key] = c.Element; c.Type == watchcache.Deleted {
				delete(between, c.Element.Key)
			}
		}
		_, err := filled.Backfill(listed, middle, again[first:], between, 0)
		require.NoError(rt, err)
		if middle > from {
			later()
			at, err := filled.At(middle)
			require.NoError(rt, err)
			_, err = filled.Backfill(at, from, again[:first], before, 0)
			require.NoError(rt, err)
		}
		later()

		type event struct {
			rv           uint64
			text, before string
		}
		eventsAfter := func(s *watchcache.State, rv uint64, interest *watchcache.Interest) (all []event) {
			p, _, err := s.PositionFor(rv, interest)
			require.NoError(rt, err)
			found, _, err := since(s, p, 100)
			require.NoError(rt, err)
			for _, e := range found {
				shown := event{rv: e.RV, text: e.Type.String() + " " + show(e.Element)}
				if e.Previous != nil {
					shown.before = show(e.Previous)
				}
				all = append(all, shown)
			}
			return all
		}
		for v := from; v <= rv; v++ {
			if v > seen.RV() {
				break
			}
			require.Equal(rt, contents(at(t, seen, v)), contents(at(t, filled, v)), "at %d", v)
			require.Equal(rt, eventsAfter(seen, v, byName("a")), eventsAfter(filled, v, byName("a")), "after %d", v)
		}
		_, err = positionAfter(filled, from-1)
		require.ErrorIs(rt, err, watchcache.ErrExpired)
		one, other := seen.Stats(), filled.Stats()
		require.Equal(rt, one.WindowBytes, other.WindowBytes)
		require.Equal(rt, one.WindowEvents, other.WindowEvents)
		require.Equal(rt, one.ObjectBytes, other.ObjectBytes)
		require.Equal(rt, other.Start, other.Oldest)

		// Events that leave the window are remembered as if nothing had been recalled.
		for _, s := range []*watchcache.State{seen, filled} {
			s.Dispatched(s.Stats().Next)
			s.Trim(int64(24 * time.Hour))
		}
		for v := from; v <= seen.RV(); v++ {
			for _, interest := range []*watchcache.Interest{byName("a"), byValue("1"), {Key: "k/b"}} {
				_, beyond, err := seen.PositionFor(v, interest)
				_, alsoBeyond, alsoErr := filled.PositionFor(v, interest)
				require.Equal(rt, beyond, alsoBeyond)
				require.Equal(rt, err == nil, alsoErr == nil, "after %d: %v, %v", v, err, alsoErr)
			}
		}
	})
}

// A history that does not lead to what was listed is not believed, and a window that
// has moved on takes none.
func TestBackfillRefuses(t *testing.T) {
	type fixture struct {
		config  watchcache.Config
		from    uint64
		changes []watchcache.Change
		before  map[string]*watchcache.Element
		since   func(s *watchcache.State)
	}
	history := func() *fixture {
		return &fixture{
			config: remembering(), from: 5,
			changes: []watchcache.Change{modified("a", 6, "1"), added("c", 7, "1"), modified("a", 8, "2"), deleted("c", 9, "1")},
			before:  map[string]*watchcache.Element{"a": element("a", 3, "0")},
			since:   func(*watchcache.State) {},
		}
	}
	for name, test := range map[string]struct {
		damage func(f *fixture)
		want   error
	}{
		"nothing is wrong":                 {func(*fixture) {}, nil},
		"the last change is missing":       {func(f *fixture) { f.changes = f.changes[:3] }, watchcache.ErrGap},
		"a change is missing":              {func(f *fixture) { f.changes = slices.Delete(f.changes, 1, 2) }, watchcache.ErrGap},
		"the last change of a is missing":  {func(f *fixture) { f.changes = slices.Delete(f.changes, 2, 3) }, watchcache.ErrGap},
		"all changes are missing":          {func(f *fixture) { f.changes = nil }, watchcache.ErrGap},
		"an object before is missing":      {func(f *fixture) { f.before = nil }, watchcache.ErrGap},
		"an object before is too new":      {func(f *fixture) { f.before["a"] = element("a", 6, "0"); f.changes = f.changes[1:] }, watchcache.ErrGap},
		"an object before is in the way":   {func(f *fixture) { f.before["c"] = element("c", 2, "0") }, watchcache.ErrGap},
		"the changes are not in order":     {func(f *fixture) { f.changes[0], f.changes[1] = f.changes[1], f.changes[0] }, watchcache.ErrGap},
		"a change is after the list":       {func(f *fixture) { f.changes = append(f.changes, added("c", 11, "1")) }, watchcache.ErrGap},
		"a change is before the history":   {func(f *fixture) { f.from = 6 }, watchcache.ErrGap},
		"the history ends before it began": {func(f *fixture) { f.from = 10 }, watchcache.ErrGap},
		"a change is told twice":           {func(f *fixture) { f.changes = slices.Insert(f.changes, 1, modified("a", 6, "1")) }, watchcache.ErrGap},
		"a key changes twice in a revision": {func(f *fixture) {
			f.changes = slices.Replace(f.changes, 2, 3, deleted("a", 8, "1"), added("a", 8, "2"))
		}, watchcache.ErrGap},
		"an object is not in the list":    {func(f *fixture) { f.changes = append(f.changes, added("d", 10, "1")) }, watchcache.ErrGap},
		"there is no room":                {func(f *fixture) { f.config.BackfillEvents = 3 }, watchcache.ErrExpired},
		"the source was listed again":     {func(f *fixture) { f.since = func(s *watchcache.State) { s.Replace(nil, 10) } }, watchcache.ErrExpired},
		"an event has left the window":    {func(f *fixture) { f.since = overflow }, watchcache.ErrExpired},
		"the history was recalled before": {func(f *fixture) { f.since = nil }, watchcache.ErrExpired},
		"storage has gone on":             {func(f *fixture) { f.since = func(s *watchcache.State) { apply(t, s, modified("a", 11, "3")) } }, nil},
		"the window has begun a revision": {func(f *fixture) { f.since = func(s *watchcache.State) { applyPart(t, s, modified("a", 11, "3")) } }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := history()
			test.damage(f)
			s := watchcache.New(f.config)
			s.Replace([]*watchcache.Element{element("a", 8, "2"), element("b", 4, "0")}, 10)
			listed := s.Latest()
			if f.since == nil {
				_, err := s.Backfill(listed, 5, history().changes, history().before, 0)
				require.NoError(t, err)
			} else {
				f.since(s)
			}
			before := s.Stats()
			_, err := s.Backfill(listed, f.from, f.changes, f.before, 0)
			if test.want == nil {
				require.NoError(t, err)
				require.Equal(t, before.WindowEvents+len(f.changes), s.Stats().WindowEvents)
				require.Equal(t, "a=0@3 b=0@4", contents(at(t, s, 5)))
				return
			}
			require.ErrorIs(t, err, test.want)
			require.Equal(t, before, s.Stats())
		})
	}
}

// overflow has an event leave the window.
func overflow(s *watchcache.State) {
	for rv := uint64(11); s.Stats().OldestRV == 10; rv++ {
		_, _ = s.Apply(modified("a", rv, "x"))
		s.Dispatched(s.Stats().Next)
		s.Trim(int64(rv) * int64(time.Hour))
	}
}

// Backfilled events leave the window as all others do: the oldest first, when there are
// too many bytes or when they are too old, and not before their time.
func TestBackfillIsBounded(t *testing.T) {
	config := remembering()
	s := watchcache.New(config)
	s.Replace([]*watchcache.Element{element("a", 8, "2")}, 10)
	listed := s.Latest()
	s.Dispatched(s.Stats().Next)
	_, err := s.Backfill(listed, 5, []watchcache.Change{added("a", 6, "1"), modified("a", 8, "2")}, nil, int64(time.Minute))
	require.NoError(t, err)
	s.Trim(int64(time.Minute + config.History))
	require.Equal(t, 2, s.Stats().WindowEvents)
	s.Trim(int64(time.Minute+config.History) + 1)
	require.Zero(t, s.Stats().WindowEvents)
	require.Equal(t, uint64(8), s.Stats().OldestRV)
	require.Zero(t, s.Stats().WindowBytes)

	config.WindowBytes = 700
	s = watchcache.New(config)
	s.Replace([]*watchcache.Element{element("a", 9, "2")}, 10)
	listed = s.Latest()
	s.Dispatched(s.Stats().Next)
	applied, err := s.Backfill(listed, 5, []watchcache.Change{added("a", 6, "1"), modified("a", 8, "2"), modified("a", 9, "2")}, nil, 0)
	require.NoError(t, err)
	require.Equal(t, 2, applied.Evicted)
	require.Equal(t, uint64(8), s.Stats().OldestRV)
}

// Events that have left the window come back at the positions that they had, if the
// source has exactly these. A pinned window keeps them.
func TestBackfillOfEvictedEvents(t *testing.T) {
	s := watchcache.New(remembering())
	s.Replace([]*watchcache.Element{element("a", 9, "0")}, 10)
	position := s.Stats().Next
	for rv := uint64(11); rv < 20; rv++ {
		apply(t, s, modified("a", rv, "1"))
	}
	s.Dispatched(s.Stats().Next)
	unpin := s.PinOldest()
	s.Trim(int64(24 * time.Hour))
	require.EqualValues(t, 10, s.Stats().OldestRV)
	unpin()
	s.Trim(int64(24 * time.Hour))
	require.EqualValues(t, 19, s.Stats().OldestRV)
	changes := func(from, through uint64) (all []watchcache.Change) {
		for rv := from + 1; rv <= through; rv++ {
			all = append(all, modified("a", rv, "1"))
		}
		return append(all, modified("a", 19, "1"))
	}
	before := map[string]*watchcache.Element{"a": element("a", 5, "0")}
	for _, from := range []uint64{7, 10} {
		_, err := s.Backfill(at(t, s, 19), from, changes(from, 17), before, int64(24*time.Hour))
		require.ErrorIs(t, err, watchcache.ErrGap, "the source has lost an event that the state has seen")
	}
	_, err := s.Backfill(at(t, s, 19), 7, changes(7, 18), before, int64(24*time.Hour))
	require.NoError(t, err)
	events, _, err := since(s, position, 1)
	require.NoError(t, err)
	require.EqualValues(t, 11, events[0].RV)
	p, beyond, err := s.PositionFor(8, byName("a"))
	require.NoError(t, err)
	require.False(t, beyond)
	require.Equal(t, position-2, p)
}

// Backfill puts many events in front of many.
func TestBackfillOfManyEvents(t *testing.T) {
	config := remembering()
	config.BackfillEvents = 1000
	s := watchcache.New(config)
	s.Replace([]*watchcache.Element{element("a", 1000, "0")}, 1000)
	listed := s.Latest()
	for rv := uint64(1001); rv <= 1100; rv++ {
		apply(t, s, modified("a", rv, "1"))
	}
	changes := []watchcache.Change{added("a", 701, "0")}
	for rv := uint64(702); rv <= 1000; rv++ {
		changes = append(changes, modified("a", rv, "0"))
	}
	_, err := s.Backfill(listed, 700, changes, nil, 0)
	require.NoError(t, err)
	p, err := positionAfter(s, 700)
	require.NoError(t, err)
	events, _, err := since(s, p, 1000)
	require.NoError(t, err)
	require.Len(t, events, 400)
	for i, e := range events {
		require.Equal(t, uint64(701+i), e.RV)
	}
}

// A reader that waits at the end of the window that a list has replaced is told, and
// not given what was recalled.
func TestBackfillKeepsOldPositionsOut(t *testing.T) {
	s := watchcache.New(remembering())
	s.Replace(nil, 1)
	apply(t, s, added("a", 2, "1"))
	old := s.Stats().Next
	changes := []watchcache.Change{added("a", 3, "0")}
	for rv := uint64(4); len(changes) < remembering().BackfillEvents; rv++ {
		changes = append(changes, modified("a", rv, "1"))
	}
	last := changes[len(changes)-1]
	s.Replace([]*watchcache.Element{element("a", last.RV, "1")}, last.RV)
	_, err := s.Backfill(s.Latest(), 2, changes, nil, 0)
	require.NoError(t, err)
	_, _, err = since(s, old, 1)
	require.ErrorIs(t, err, watchcache.ErrExpired)
	_, _, err = s.Resume(old, byName("a"))
	require.ErrorIs(t, err, watchcache.ErrExpired)
}

// The elements that were listed may be among the changes. They are published, so that
// Backfill does not write to them.
func TestBackfillOfListedElements(t *testing.T) {
	s := watchcache.New(remembering())
	now := element("k/a", 12, "x")
	s.Replace([]*watchcache.Element{now}, 12)
	key := unsafe.StringData(now.Key)
	changes := []watchcache.Change{added(strings.Clone("k/a"), 11, "x"), {Type: watchcache.Modified, Element: now, RV: 12}}
	_, err := s.Backfill(s.Latest(), 10, changes, nil, 0)
	require.NoError(t, err)
	require.Same(t, key, unsafe.StringData(now.Key), "the listed element was written to")
	p, err := positionAfter(s, 11)
	require.NoError(t, err)
	events, _, err := since(s, p, 10)
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.Same(t, now, events[0].Element)
}

// A revision of the history may change several keys, and each of them once; a history
// is from below the list's version.
func TestBackfillOfOneRevision(t *testing.T) {
	recall := func(from uint64, changes ...watchcache.Change) error {
		s := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1 << 40, BackfillEvents: 10})
		s.Replace([]*watchcache.Element{element("a", 100, "1"), element("b", 100, "1")}, 100)
		_, err := s.Backfill(s.Latest(), from, changes, nil, 0)
		return err
	}
	require.NoError(t, recall(99, added("a", 100, "1"), added("b", 100, "1")))
	require.ErrorIs(t, recall(99, added("a", 100, "1"), added("b", 100, "1"), modified("a", 100, "1")), watchcache.ErrGap)
	require.ErrorIs(t, recall(100), watchcache.ErrGap)
}
