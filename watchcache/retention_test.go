// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// collected requires that what the weak pointers point at is no longer kept by
// anything. A reference that is still there at the hundredth collection is
// taken to be permanent.
func collected[T any](t *testing.T, what string, pointers ...weak.Pointer[T]) {
	t.Helper()
	for range 100 {
		runtime.GC()
		left := 0
		for _, p := range pointers {
			if p.Value() != nil {
				left++
			}
		}
		if left == 0 {
			return
		}
	}
	for i, p := range pointers {
		if !assert.Nil(t, p.Value(), "%s: number %d of %d is still in memory", what, i, len(pointers)) {
			return
		}
	}
}

// kept requires that the weak pointers' targets are still in memory.
func kept[T any](t *testing.T, what string, pointers ...weak.Pointer[T]) {
	t.Helper()
	runtime.GC()
	for i, p := range pointers {
		require.NotNil(t, p.Value(), "%s: number %d", what, i)
	}
}

// Regression 42: an event that has left the window is free, and with it the
// versions that only it kept. Snapshots and readers' cursors keep no events.
func TestEvictedEventsAreCollected(t *testing.T) {
	s := watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1 << 40, Indexes: indexes})
	s.Replace(nil, 1)
	var events []weak.Pointer[watchcache.Event]
	var versions []weak.Pointer[watchcache.Element]
	change := func(c watchcache.Change) {
		e := apply(t, s, c).Event
		events = append(events, weak.Make(e))
		versions = append(versions, weak.Make(e.Element))
	}
	change(added("a", 2, "1"))
	for rv := uint64(3); rv < 200; rv++ {
		change(modified("a", rv, fmt.Sprint(rv%7)))
	}
	change(added("b", 200, "1"))
	change(deleted("b", 201, "1"))

	// A reader's buffer keeps what it holds, and nothing else does.
	buf := make([]*watchcache.Event, 10)
	n, _, err := s.Since(1, buf)
	require.NoError(t, err)
	require.Equal(t, 10, n)
	s.Latest()
	kept(t, "events in the window", events...)
	kept(t, "versions in the window", versions...)

	s.Dispatched(s.Stats().Next)
	s.Trim(int64(time.Hour))
	require.Zero(t, s.Stats().WindowEvents)
	collected(t, "evicted events", events[10:]...)
	current := len(versions) - 3 // of a
	collected(t, "old versions", versions[10:current]...)
	collected(t, "deleted objects", versions[current+1:]...)
	kept(t, "the current version", versions[current])
	kept(t, "a reader's events", events[:10]...)
	runtime.KeepAlive(buf)
	clear(buf)
	collected(t, "events that the reader has let go", events...)
	runtime.KeepAlive(s)
}

// The part of the ring that stays when it is not resized keeps no evicted
// event either.
func TestEvictedSlotsAreCleared(t *testing.T) {
	s := watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1 << 40, MinEvents: 1})
	var events []weak.Pointer[watchcache.Event]
	for rv := uint64(1); rv <= 100; rv++ {
		s.Dispatched(s.Stats().Next)
		e := apply(t, s, receivedAt(time.Duration(rv)*time.Hour, added(fmt.Sprint(rv), rv, "1"))).Event
		events = append(events, weak.Make(e))
	}
	require.Equal(t, 1, s.Stats().WindowEvents)
	collected(t, "evicted events", events[:len(events)-1]...)
	kept(t, "the one event in the window", events[len(events)-1])
	runtime.KeepAlive(s)
}

// Regression 43: the memory of a value's elements in an index is free when they
// are gone, after Apply as after Replace.
func TestIndexEntriesAreFreed(t *testing.T) {
	const values = 500
	s := watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1 << 40, Indexes: indexes})
	s.Replace(nil, 1)
	var elements []weak.Pointer[watchcache.Element]
	rv := uint64(1)
	for i := range values {
		rv++
		c := added(fmt.Sprint("k", i), rv, fmt.Sprint("value", i))
		annotate(c.Element, fmt.Sprint("word", i))
		elements = append(elements, weak.Make(c.Element))
		apply(t, s, c)
		s.Latest()
	}
	for i := range values {
		rv++
		key := fmt.Sprint("k", i)
		if i%2 == 0 {
			apply(t, s, deleted(key, rv, "gone"))
		} else {
			apply(t, s, modified(key, rv, "other"))
		}
	}
	latest := s.Latest()
	for i := range values {
		for index, value := range map[string]string{"value": fmt.Sprint("value", i), "words": fmt.Sprint("word", i)} {
			found, _ := rangedIndex(latest, index, value, "", "")
			require.Empty(t, found)
		}
	}
	s.Dispatched(s.Stats().Next)
	s.Trim(int64(time.Hour))
	collected(t, "elements that were indexed under values of their own", elements...)

	e := element("z", rv, "z")
	replaced := weak.Make(e)
	s.Replace([]*watchcache.Element{e}, rv)
	e, latest = nil, nil
	s.Latest()
	s.Replace(nil, rv+1)
	collected(t, "an element of the list before", replaced)
	runtime.KeepAlive(s)
}

// Snapshots that At has made are dropped when they were not read for
// Config.History, and at once with Replace and when they are compacted.
func TestExactSnapshotsAreCollected(t *testing.T) {
	s := watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1 << 40})
	var versions []weak.Pointer[watchcache.Element]
	fill := func(from uint64) {
		versions = nil
		s.Replace(nil, from)
		for rv := from + 1; rv < from+8; rv++ {
			e := apply(t, s, added(fmt.Sprint("k", rv), rv, "1"), deleted(fmt.Sprint("k", rv), rv+1, "1")).Event
			versions = append(versions, weak.Make(e.Previous))
			rv++
		}
		for rv := from; rv < from+8; rv++ {
			at(t, s, rv)
		}
		s.Dispatched(s.Stats().Next)
	}
	fill(10)
	s.Trim(int64(time.Second)) // in use until now
	at(t, s, 11)
	s.Trim(int64(2 * time.Second))
	require.Zero(t, s.Stats().WindowEvents)
	kept(t, "an element in a snapshot that is kept", versions[0])
	s.Trim(int64(time.Hour))
	collected(t, "elements in idle snapshots", versions...)

	fill(100)
	s.Replace(nil, 200)
	collected(t, "elements in snapshots from before the list", versions...)

	fill(300)
	s.Trim(int64(time.Hour) + 1)
	require.Zero(t, s.Stats().WindowEvents)
	s.Compacted(400)
	collected(t, "elements in snapshots of versions that are compacted", versions...)
	runtime.KeepAlive(s)
}

// Regression 49: Replace frees all of the state before it, though readers have
// asked for every kind of snapshot of it, and a revision was not complete: no
// slot of the ring, kept version or scratch holds on to it.
func TestReplaceFreesTheOldState(t *testing.T) {
	s := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1 << 40, Indexes: indexes})
	var old []weak.Pointer[watchcache.Element]
	fill := func(rv uint64) uint64 {
		var elements []*watchcache.Element
		note := func(e *watchcache.Element) *watchcache.Element {
			old = append(old, weak.Make(e))
			return e
		}
		for i := range 100 {
			elements = append(elements, note(element(fmt.Sprintf("k%03d", i), rv, "1")))
		}
		s.Replace(elements, rv)
		for i := range uint64(200) {
			c := modified(fmt.Sprintf("k%03d", i%100), rv+i+1, "2")
			note(c.Element)
			note(apply(t, s, c).Event.DeletedView(func(e *watchcache.Event) *watchcache.Element {
				return element(e.Element.Key, e.RV, "left")
			}))
			if i%20 == 0 {
				s.PinSnapshot(s.Latest())
				rangedIndex(at(t, s, rv+i/2), "value", "1", "", "")
				s.Latest().All()
			}
		}
		c := modified("k000", rv+201, "3")
		note(c.Element)
		applyPart(t, s, c)
		s.Latest().All()
		s.Get("k001")
		return rv + 202
	}
	rv := fill(1)
	kept(t, "an element of the state", old[len(old)-1])
	s.Replace(nil, rv)
	collected(t, "elements from before the list", old...)
	runtime.KeepAlive(s)
}

// Regression 99: the copies that may be made for watchers whose selectors an
// update has left count in the window, and are dropped with the event.
func TestCopiesForWatchersCountInTheWindow(t *testing.T) {
	const size = 1 << 20
	s := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 10 * size})
	large := func(c watchcache.Change) watchcache.Change {
		c.Element.Size = size
		return c
	}
	apply(t, s, large(added("a", 1, "0")))
	var copies []weak.Pointer[watchcache.Element]
	for rv := uint64(2); rv <= 6; rv++ {
		before := s.Stats().WindowBytes
		e := apply(t, s, large(modified("a", rv, fmt.Sprint(rv)))).Event
		require.InDelta(t, 2*size, s.Stats().WindowBytes-before, 1000, "the version before it, and a copy of that")
		e.DeletedView(func(e *watchcache.Event) *watchcache.Element {
			left := element(e.Element.Key, e.RV, "left")
			copies = append(copies, weak.Make(left))
			return left
		})
	}
	require.Equal(t, 6, s.Stats().WindowEvents)
	s.Dispatched(s.Stats().Next)
	s.Trim(1)
	require.Equal(t, 4, s.Stats().WindowEvents, "five versions and five copies, of which ten fit")
	require.LessOrEqual(t, s.Stats().WindowBytes, int64(10*size))
	s.Trim(int64(2 * time.Hour))
	s.Replace(nil, 7)
	require.Zero(t, s.Stats().WindowBytes)
	collected(t, "copies of events that have left the window", copies...)
	runtime.KeepAlive(s)
}
