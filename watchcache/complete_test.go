// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// While a resourceVersion is not complete, all readers share one snapshot of
// the complete one before, however many of its events have come.
func TestLatestIsSharedInATail(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1")}, 1)
	applyPart(t, s, modified("a", 5, "2"))
	latest := s.Latest()
	require.Equal(t, "a=1@1", contents(latest))
	require.Equal(t, uint64(4), latest.RV())
	for i := range 10 {
		applyPart(t, s, added(fmt.Sprint("b", i), 5, "1"))
		require.Same(t, latest, s.Latest())
		require.Same(t, latest, at(t, s, 4))
	}
	e, _ := s.Get("a")
	require.Equal(t, "a=2@5", show(e), "of one object nothing can be missing")
	require.NoError(t, s.Progress(5))
	require.Equal(t, 11, s.Latest().Len())
	require.Equal(t, "a=1@1", contents(latest))
}

// Readers of a source whose transactions write two keys at a time never see
// one of them without the other, in no kind of snapshot.
func TestTransactionsAreWhole(t *testing.T) {
	s := watchcache.New(watchcache.Config{MinEvents: 200, WindowBytes: 1 << 40, Indexes: indexes})
	s.Replace([]*watchcache.Element{element("a", 1, "1"), element("b", 1, "1")}, 1)
	const transactions = 3000
	stop := make(chan struct{})
	var readers sync.WaitGroup
	check := func(snapshot *watchcache.Snapshot) {
		a, b := snapshot.Get("a"), snapshot.Get("b")
		if a.RV != b.RV || a.RV > snapshot.RV() || snapshot.Len() != 2 {
			assert.Fail(t, "a reader sees a part of a transaction", "at %d: %s, %s", snapshot.RV(), show(a), show(b))
		}
		if got := contents(snapshot); got != show(a)+" "+show(b) {
			assert.Fail(t, "a reader sees a part of a transaction", "at %d: %s", snapshot.RV(), got)
		}
	}
	for range 3 {
		readers.Go(func() {
			for last := uint64(0); ; {
				latest := s.Latest()
				check(latest)
				if latest.RV() < last {
					assert.Fail(t, "a reader goes back", "at %d after %d", latest.RV(), last)
				}
				last = latest.RV()
				if earlier, err := s.At(last - min(last-1, 7)); err == nil {
					check(earlier)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for i := range uint64(transactions) {
		rv := 2 + 2*i
		applied := applyPart(t, s, modified("a", rv, "1"), modified("b", rv, "1"))
		if i%3 == 0 {
			require.NoError(t, s.Progress(rv))
		}
		s.Dispatched(applied.Event.Position)
	}
	close(stop)
	readers.Wait()
}

// Carry continues where the source was left in the middle of a resourceVersion:
// the list has the rest of its changes.
func TestCarryFromTheMiddle(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1"), element("b", 1, "1"), element("c", 1, "1")}, 1)
	applyPart(t, s, modified("a", 5, "2"))
	lastState := func(e *watchcache.Element) *watchcache.Element { return element(e.Key, 9, e.Labels["value"]) }
	n, err := s.Carry([]*watchcache.Element{element("a", 5, "2"), element("b", 5, "2"), element("d", 7, "1")}, 9, 0, lastState)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, "a=2@5 b=2@5 d=1@7", contents(s.Latest()))
	require.Equal(t, "a=1@1 b=1@1 c=1@1", contents(at(t, s, 4)))
	for rv := uint64(5); rv < 9; rv++ {
		_, err := s.At(rv)
		require.ErrorIs(t, err, watchcache.ErrExpired, "%d was not seen as a whole", rv)
	}
	events, through, err := since(s, 1, 10)
	require.NoError(t, err)
	require.Equal(t, uint64(9), through)
	require.Equal(t, []string{
		"1:MODIFIED a=2@5 was a=1@1", "2:MODIFIED b=2@5 was b=1@1", "3:ADDED d=1@7", "4:DELETED c=1@9 was c=1@1",
	}, showEvents(events))
	require.Equal(t, at(t, s, 9).Digest(), s.Latest().Digest())

	// A list from before the last event is refused, and so is one that lacks a
	// change that the state has.
	applyPart(t, s, modified("a", 12, "3"))
	_, err = s.Carry(nil, 11, 0, lastState)
	require.ErrorIs(t, err, watchcache.ErrBackwards)
	require.Equal(t, "a=2@5 b=2@5 d=1@7", contents(s.Latest()))
}

// The events of a list that is carried come in the order of their versions, the
// deletions last; an object from before the state, or from after the list, is a gap.
func TestCarryOrdersEvents(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1"), element("b", 5, "1")}, 5)
	lastState := func(e *watchcache.Element) *watchcache.Element { return element(e.Key, 9, e.Labels["value"]) }
	for what, e := range map[string]*watchcache.Element{
		"created at the state's version": element("c", 5, "1"), "created after the list": element("c", 10, "1"),
	} {
		_, err := s.Carry([]*watchcache.Element{element("a", 1, "1"), element("b", 5, "1"), e}, 9, 0, lastState)
		require.ErrorIs(t, err, watchcache.ErrGap, what)
	}
	_, err := s.Carry([]*watchcache.Element{element("a", 8, "2"), element("c", 7, "1"), element("d", 6, "1")}, 9, 0, lastState)
	require.NoError(t, err)
	events, _, err := since(s, 1, 10)
	require.NoError(t, err)
	require.Equal(t, []string{"1:ADDED d=1@6", "2:ADDED c=1@7", "3:MODIFIED a=2@8 was a=1@1", "4:DELETED b=1@9 was b=1@5"}, showEvents(events))
}

// A list of what the state has already changes nothing, and is no error.
func TestCarryOfTheSameState(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 5, "1")}, 5)
	n, err := s.Carry([]*watchcache.Element{element("a", 5, "1")}, 5, 0, nil)
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = s.Carry(nil, 5, 0, func(e *watchcache.Element) *watchcache.Element { return e })
	require.ErrorIs(t, err, watchcache.ErrGap, "another state at the same version")
}

// After Carry the bytes are those of the objects that were listed, and the window keeps
// to its bound.
func TestBytesAfterCarry(t *testing.T) {
	sized := func(key string, rv uint64, size int64) *watchcache.Element {
		e := element(key, rv, "1")
		e.Size = size
		return e
	}
	s := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1000})
	s.Replace([]*watchcache.Element{sized("a", 1, 100), sized("b", 1, 200), sized("c", 1, 400)}, 1)
	apply(t, s, watchcache.Change{Type: watchcache.Modified, Element: sized("a", 5, 800), RV: 5, Whole: true})
	s.Dispatched(s.Stats().Next)
	before := s.Stats()
	require.Equal(t, 1, before.WindowEvents)
	list := func() []*watchcache.Element {
		return []*watchcache.Element{sized("a", 8, 300), sized("b", 1, 200), sized("d", 9, 50)}
	}
	_, err := s.Carry(list(), 9, 0,
		func(*watchcache.Element) *watchcache.Element { return sized("c", 9, 400) })
	require.NoError(t, err)
	after := s.Stats()
	listed := watchcache.New(roomy)
	listed.Replace(list(), 9)
	require.Equal(t, listed.Stats().ObjectBytes, after.ObjectBytes)
	require.Equal(t, before.Oldest+1, after.Oldest, "the event that was dispatched has left the window, which is above its bound")
}

// A state that may have missed events is carried over a list for those only who were
// told what it has: nobody can continue from what it had before.
func TestCarryAfterMissedEvents(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 5, "1"), element("b", 5, "1")}, 5)
	applyPart(t, s, modified("b", 6, "2"))
	s.HideBefore(9)
	lastState := func(e *watchcache.Element) *watchcache.Element { return element(e.Key, 9, e.Labels["value"]) }
	_, err := s.PositionAfter(5)
	require.ErrorIs(t, err, watchcache.ErrExpired, "before the list is there")
	n, err := s.Carry([]*watchcache.Element{element("a", 5, "1"), element("c", 7, "1")}, 9, 0, lastState)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	for _, rv := range []uint64{5, 6, 8} {
		_, err := s.PositionAfter(rv)
		assert.ErrorIs(t, err, watchcache.ErrExpired, "a watch from %d", rv)
		assert.True(t, s.Skipped(rv), "%d", rv)
	}
	_, err = s.PositionAfter(9)
	require.NoError(t, err)
	assert.False(t, s.Skipped(9))

	// So it is when the window has left that behind, and another list has come.
	s.Dispatched(s.Stats().Next)
	s.Trim(int64(10 * time.Hour))
	_, err = s.Carry([]*watchcache.Element{element("a", 5, "1"), element("c", 7, "1")}, 12, 0, lastState)
	require.NoError(t, err)
	assert.True(t, s.Skipped(8))
	assert.False(t, s.Skipped(9))
}

// A kept snapshot may be read up to when the source has compacted past it.
func TestKeptUpToCompaction(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1")}, 1)
	apply(t, s, modified("a", 5, "2"))
	s.Keep(s.Latest())
	s.Compacted(5)
	require.True(t, s.Kept(5))
	s.Compacted(6)
	require.False(t, s.Kept(5))
}

// Unfinished names the version of which more changes may come.
func TestUnfinished(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1")}, 1)
	require.Zero(t, s.Unfinished())
	applyPart(t, s, modified("a", 5, "2"))
	require.Equal(t, uint64(5), s.Unfinished())
	require.NoError(t, s.Progress(5))
	require.Zero(t, s.Unfinished())
}

// Regression 98: readers and the dispatcher are served while Carry makes the
// new state.
func TestCarryLocksNobodyOut(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1"), element("b", 1, "1")}, 1)
	served := make(chan string)
	n, err := s.Carry([]*watchcache.Element{element("a", 5, "2")}, 9, 0, func(e *watchcache.Element) *watchcache.Element {
		go func() {
			e, rv := s.Get("a")
			_, through, err := since(s, 1, 10)
			s.Dispatched(1)
			s.Trim(1)
			served <- fmt.Sprint(contents(s.Latest()), " ", show(e), " ", rv, " ", through, " ", err, " ", s.RV(), " ", s.Stats().Objects)
		}()
		require.Equal(t, "a=1@1 b=1@1 a=1@1 1 1 <nil> 1 2", <-served)
		return element(e.Key, 9, e.Labels["value"])
	})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, "a=2@5", contents(s.Latest()))
}

func showEvents(events []*watchcache.Event) (shown []string) {
	for _, e := range events {
		shown = append(shown, showEvent(e))
	}
	return shown
}
