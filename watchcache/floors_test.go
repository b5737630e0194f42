// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// floorsByValueAndName are by the label "value", and by the name in the key.
var floorsByValueAndName = []watchcache.Index{indexes[0], {Name: "name", Values: func(e *watchcache.Element, dst []string) []string {
	return append(dst, nameOf(e))
}}}

func nameOf(e *watchcache.Element) string { return e.Key[len(e.Key)-1:] }

// byValue and byName are slices by one requirement.
func byValue(values ...string) *watchcache.Interest {
	return &watchcache.Interest{Required: []watchcache.Requirement{{Floor: 0, Values: values}}}
}

func byName(values ...string) *watchcache.Interest {
	return &watchcache.Interest{Required: []watchcache.Requirement{{Floor: 1, Values: values}}}
}

// isFor reports whether an event is of an interest, as the documentation of Interest has it.
func isFor(of *watchcache.Interest, e *watchcache.Event) bool {
	if of.Key != "" && e.Element.Key != of.Key {
		return false
	}
	for _, required := range of.Required {
		has := func(e *watchcache.Element) bool {
			if e == nil {
				return false
			}
			found := floorsByValueAndName[required.Floor].Values(e, nil)
			return slices.ContainsFunc(found, func(v string) bool { return slices.Contains(required.Values, v) })
		}
		if !has(e.Element) && !has(e.Previous) {
			return false
		}
	}
	return true
}

// checkFloors asks for the positions of readers of all kinds of slices, and looks
// through everything that has happened since the last Replace to see whether they
// may be given one.
func (d *driver) checkFloors() {
	req, m := d.require(), d.model
	value, name := []string{"0", "1", "2", "3"}[d.choose("floor value", 4)], []string{"a", "b", "c", "d"}[d.choose("floor name", 4)]
	both := byValue(value)
	both.Required = append(both.Required, byName(name).Required...)
	key := &watchcache.Interest{Key: driverKeys[d.choose("floor key", len(driverKeys))]}
	keyOrName := &watchcache.Interest{Key: key.Key, Required: byName(key.Key[len(key.Key)-1:]).Required}
	for i, of := range []*watchcache.Interest{byValue(value), byValue(value, "1"), byName(name), both, key, keyOrName, {}, byValue()} {
		exact := i < 3 && m.config.FloorValues == 100
		evicted := func(which func(e *watchcache.Event) bool) bool {
			return slices.ContainsFunc(m.events[:m.kept], func(e *watchcache.Event) bool { return which(e) && isFor(of, e) })
		}
		base := m.versions[0].rv
		rv := base - min(base, 2) + uint64(d.choose("floor rv", 4+int(m.latest().rv-base)))
		missed := rv < base || evicted(func(e *watchcache.Event) bool { return e.RV > rv })
		p, beyond, err := d.state.PositionFor(rv, of)
		switch {
		case rv >= m.dropped:
			req.NoError(err)
			req.False(beyond)
			req.Equal(m.after(rv), p)
		case err == nil:
			req.False(missed, "a reader of %+v at %d has missed events", of, rv)
			req.True(beyond)
			req.Equal(m.first(), p)
		default:
			req.ErrorIs(err, watchcache.ErrExpired)
			req.True(missed || !exact, "a reader of %+v at %d has missed nothing", of, rv)
		}

		at := m.start - min(m.start, 2) + watchcache.Position(d.choose("floor position", 3+len(m.events)))
		missed = at < m.start || evicted(func(e *watchcache.Event) bool { return e.Position >= at })
		p, beyond, err = d.state.Resume(at, of)
		switch {
		case at >= m.first():
			req.NoError(err)
			req.False(beyond)
			req.Equal(at, p)
		case err == nil:
			req.False(missed, "a reader of %+v at position %d has missed events", of, at)
			req.True(beyond)
			req.Equal(m.first(), p)
		default:
			req.ErrorIs(err, watchcache.ErrExpired)
			req.True(missed || !exact, "a reader of %+v at position %d has missed nothing", of, at)
		}
	}
}

// quietState has a state whose window holds two events, and is dispatched up to its
// end after each of the changes.
func quietState(t *testing.T, values int, rv uint64, changes ...watchcache.Change) *watchcache.State {
	s := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1, Floors: floorsByValueAndName, FloorValues: values})
	s.Replace(nil, rv)
	flush(t, s, changes...)
	return s
}

// flush applies changes and has all but the last one leave the window.
func flush(t *testing.T, s *watchcache.State, changes ...watchcache.Change) {
	t.Helper()
	for _, c := range changes {
		apply(t, s, c)
		s.Dispatched(s.Stats().Next)
	}
	s.Trim(0)
	require.Equal(t, 1, s.Stats().WindowEvents)
}

// noise are n changes of one object, from a resourceVersion on.
func noise(rv uint64, n int) (changes []watchcache.Change) {
	for i := range n {
		changes = append(changes, modified("/noisy", rv+uint64(i), "noisy"))
	}
	return changes
}

func requirePosition(t *testing.T, s *watchcache.State, rv uint64, of *watchcache.Interest, whole bool) {
	t.Helper()
	_, beyond, err := s.PositionFor(rv, of)
	if !whole {
		require.ErrorIs(t, err, watchcache.ErrExpired)
		return
	}
	require.NoError(t, err)
	require.True(t, beyond, "it has not left the window")
}

// A reader whose values have not changed since its version goes on; one that has
// missed a change of them, their coming and their going included, does not.
func TestFloors(t *testing.T) {
	s := quietState(t, 100, 1,
		added("/a", 2, "x"), modified("/a", 3, "y"), deleted("/a", 4, "y"), added("/noisy", 5, "noisy"),
	)
	flush(t, s, noise(6, 10)...)
	for _, of := range []struct {
		interest *watchcache.Interest
		floor    uint64
	}{
		{byValue("x"), 3}, {byValue("y"), 4}, {byValue("x", "y"), 4}, {byName("a"), 4}, {byValue("none"), 1}, {byName("y"), 14},
	} {
		for rv := uint64(0); rv < 14; rv++ {
			requirePosition(t, s, rv, of.interest, rv >= of.floor)
			if rv < 2 {
				continue
			}
			// The event at rv is at this position.
			at := s.Stats().Start + watchcache.Position(rv-2)
			_, beyond, err := s.Resume(at, of.interest)
			if rv <= of.floor {
				require.ErrorIs(t, err, watchcache.ErrExpired)
				continue
			}
			require.NoError(t, err)
			require.True(t, beyond)
		}
	}
	requirePosition(t, s, 4, &watchcache.Interest{}, false)
	requirePosition(t, s, 4, &watchcache.Interest{Key: "/a"}, false) // gone, nobody knows since when
	requirePosition(t, s, 13, &watchcache.Interest{Required: []watchcache.Requirement{{Floor: len(floorsByValueAndName), Values: []string{"x"}}}}, false)
}

// A reader of one object goes on from the version at which the object last changed.
func TestFloorOfAKey(t *testing.T) {
	s := quietState(t, 100, 1, added("/b", 4, "x"), added("/noisy", 5, "noisy"))
	flush(t, s, noise(6, 10)...)
	for rv := uint64(0); rv < 14; rv++ {
		requirePosition(t, s, rv, &watchcache.Interest{Key: "/b"}, rv >= 4)
		requirePosition(t, s, rv, &watchcache.Interest{}, false)
	}
}

// The floors of more values than are remembered are those of the last ones; readers
// of the others are refused from where theirs may have been forgotten.
func TestFloorsAreBounded(t *testing.T) {
	const most = 100
	var changes []watchcache.Change
	for i := range 1000 {
		changes = append(changes, added("/"+strconv.Itoa(i), uint64(i+2), fmt.Sprint("v", i)))
	}
	s := quietState(t, most, 1, changes[0])
	for i := range changes[1:] {
		flush(t, s, changes[i+1])
		stats := s.Stats()
		require.LessOrEqual(t, stats.FloorValues, most+10, "with the ten names")
		require.Positive(t, stats.FloorValues)
		require.LessOrEqual(t, stats.FloorBytes, int64(most+10)*80)
		require.Positive(t, stats.FloorBytes)
		for value := max(0, i-most/2+2); value <= i; value++ {
			_, _, err := s.PositionFor(uint64(value+2), byValue(fmt.Sprint("v", value)))
			require.NoError(t, err, "the value %d, when %d have left the window", value, i+1)
		}
	}
	for i := range 990 {
		_, _, err := s.PositionFor(uint64(i+1), byValue(fmt.Sprint("v", i)))
		require.ErrorIs(t, err, watchcache.ErrExpired)
	}
	_, _, err := s.PositionFor(2, byValue("none"))
	require.ErrorIs(t, err, watchcache.ErrExpired, "it may be one of those that were forgotten")
}

// Values of any length take no more memory than short ones, and are told apart (regression
// 181).
func TestFloorsOfLongValues(t *testing.T) {
	long := func(i int) string { return fmt.Sprintf("%d%s", i, strings.Repeat("x", 100_000)) }
	s := quietState(t, 100, 1, added("/noisy", 2, "noisy"))
	rv := uint64(3)
	for i := range 300 {
		flush(t, s, added(fmt.Sprint("/", i), rv, long(i)), modified("/noisy", rv+1, "noisy"))
		rv += 2
	}
	require.Less(t, s.Stats().FloorBytes, int64(100<<10))
	requirePosition(t, s, rv-4, byValue(long(298)), true)
	requirePosition(t, s, rv-4, byValue(long(299)), false)
}
