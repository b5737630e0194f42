// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// counter applies additions and modifications of one key at growing
// resourceVersions, one a second.
type counter struct {
	t     testing.TB
	state *watchcache.State
	rv    uint64
	size  int64
}

func newCounter(t testing.TB, config watchcache.Config) *counter {
	return &counter{t: t, state: watchcache.New(config)}
}

func (c *counter) apply(n int) (total watchcache.Applied) {
	for range n {
		c.rv++
		change := modified("a", c.rv, fmt.Sprint(c.rv))
		if e, _ := c.state.Get("a"); e == nil {
			change.Type = watchcache.Added
		}
		change.Element.Size = c.size
		applied := apply(c.t, c.state, receivedAt(time.Duration(c.rv)*time.Second, change))
		total.Evicted += applied.Evicted
		total.Resized = total.Resized || applied.Resized
	}
	return total
}

func (c *counter) dispatchAll() { c.state.Dispatched(c.state.Stats().Next) }

// wholeFrom requires that the window gives every event from position p on.
func (c *counter) wholeFrom(p watchcache.Position) {
	c.t.Helper()
	stats := c.state.Stats()
	events, through, err := since(c.state, p, stats.WindowEvents+1)
	require.NoError(c.t, err)
	require.Equal(c.t, stats.RV, through)
	require.Len(c.t, events, int(stats.Next-p))
	for i, e := range events {
		require.Equal(c.t, p+watchcache.Position(i), e.Position)
		require.Equal(c.t, uint64(e.Position)+1, e.RV)
	}
}

func TestSinceCutsBatches(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace(nil, 3)
	apply(t, s, added("a", 5, "1"), added("b", 7, "1"), added("c", 7, "1"), added("d", 7, "1"), added("e", 9, "1"))
	require.NoError(t, s.Progress(12))
	first := s.Stats().Oldest
	for _, tc := range []struct {
		from    watchcache.Position
		room    int
		want    int
		through uint64
	}{
		{0, 0, 0, 4},   // before the event at 5
		{0, 1, 1, 6},   // and up to the one at 7
		{0, 2, 2, 6},   // between two events at 7
		{0, 3, 3, 6},   // the same
		{0, 4, 4, 8},   // all at 7
		{0, 5, 5, 12},  // everything, and what was declared complete
		{0, 50, 5, 12}, // room to spare
		{2, 0, 0, 6},
		{2, 1, 1, 6},
		{3, 1, 1, 8},
		{5, 0, 0, 12},
		{5, 9, 0, 12},
	} {
		events, through, err := since(s, first+tc.from, tc.room)
		require.NoError(t, err)
		require.Len(t, events, tc.want, "%+v", tc)
		require.Equal(t, tc.through, through, "%+v", tc)
		for i, e := range events {
			require.Equal(t, first+tc.from+watchcache.Position(i), e.Position)
		}
	}
}

func TestPositionAfter(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace(nil, 3)
	apply(t, s, added("a", 5, "1"), added("b", 7, "1"), added("c", 7, "1"), added("d", 9, "1"))
	first := s.Stats().Oldest
	for rv, want := range map[uint64]watchcache.Position{3: 0, 4: 0, 5: 1, 6: 1, 7: 3, 8: 3, 9: 4, 10: 4, 1 << 60: 4} {
		p, err := s.PositionAfter(rv)
		require.NoError(t, err)
		require.Equal(t, first+want, p, "after %d", rv)
	}
	for rv := range uint64(3) {
		_, err := s.PositionAfter(rv)
		require.ErrorIs(t, err, watchcache.ErrExpired)
	}
}

// Regressions 1 and 2: a watch from before the window gets an error, right
// after a list as after an eviction.
func TestWatchFromBeforeTheWindowIsRefused(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 8, "1")}, 10)
	_, err := s.PositionAfter(9)
	require.ErrorIs(t, err, watchcache.ErrExpired)
	_, err = s.PositionAfter(10)
	require.NoError(t, err)

	// Two of three events share a resourceVersion, and one of these is evicted:
	// a watch can continue after both, not between or before them.
	s = watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1 << 30, MinEvents: 2})
	s.Replace(nil, 10)
	apply(t, s, added("a", 11, "1"), added("b", 11, "1"), added("c", 12, "1"))
	s.Dispatched(s.Stats().Next)
	require.Equal(t, 1, s.Trim(int64(time.Hour)).Evicted)
	_, err = s.PositionAfter(10)
	require.ErrorIs(t, err, watchcache.ErrExpired)
	p, err := s.PositionAfter(11)
	require.NoError(t, err)
	require.Equal(t, s.Stats().Next-1, p)
	require.Equal(t, "a=1@11 b=1@11", contents(at(t, s, 11)))
	_, err = s.At(10)
	require.ErrorIs(t, err, watchcache.ErrExpired)
}

func TestWindowKeepsItsHistory(t *testing.T) {
	c := newCounter(t, watchcache.Config{History: 10 * time.Second, WindowBytes: 1 << 40})
	for range 100 {
		c.apply(1)
		c.dispatchAll()
	}
	c.apply(1) // the event at 101 s: what was received before 91 s may go
	stats := c.state.Stats()
	require.Equal(t, 11, stats.WindowEvents)
	require.Equal(t, uint64(90), stats.OldestRV)
	c.dispatchAll()
	require.Zero(t, c.state.Trim(int64(101*time.Second)).Evicted, "an event exactly as old as History stays")
	require.Equal(t, 1, c.state.Trim(int64(101*time.Second)+1).Evicted)
	require.Zero(t, c.state.Trim(int64(50*time.Second)).Evicted, "time does not go back")
	require.Equal(t, 10, c.state.Trim(int64(time.Hour)).Evicted)
	require.Zero(t, c.state.Stats().WindowEvents)
	require.Zero(t, c.state.Stats().WindowBytes)
}

func TestNewestEventStaysWhateverItTakes(t *testing.T) {
	c := newCounter(t, watchcache.Config{History: time.Hour, WindowBytes: 10})
	c.size = 1 << 20
	c.apply(3)
	c.dispatchAll()
	require.Equal(t, 2, c.state.Trim(0).Evicted)
	require.Equal(t, 1, c.state.Stats().WindowEvents)
	c.wholeFrom(2)
}

// W6: events that were not dispatched stay, however old and large they are.
func TestUndispatchedEventsStay(t *testing.T) {
	c := newCounter(t, watchcache.Config{History: time.Second, WindowBytes: 10})
	c.size = 1000
	require.Zero(t, c.apply(1000).Evicted)
	require.Zero(t, c.state.Trim(int64(time.Hour)).Evicted)
	c.wholeFrom(0)
	c.state.Dispatched(400)
	require.Equal(t, 400, c.state.Trim(int64(time.Hour)).Evicted)
	c.wholeFrom(400)
	require.Equal(t, 0, c.apply(1).Evicted)
	c.state.Dispatched(401)
	require.Equal(t, 1, c.apply(1).Evicted)
	c.wholeFrom(401)
}

func TestRingGrowsAndShrinks(t *testing.T) {
	c := newCounter(t, watchcache.Config{History: 10_000 * time.Second, WindowBytes: 1 << 40})
	small := c.state.Stats().WindowCapacity
	require.False(t, c.apply(small).Resized)
	require.True(t, c.apply(1).Resized)
	require.Equal(t, 2*small, c.state.Stats().WindowCapacity)
	c.apply(5000)
	large := c.state.Stats().WindowCapacity
	require.GreaterOrEqual(t, large, 5000)
	require.Less(t, large, 4*5000)
	c.wholeFrom(0)

	c.dispatchAll()
	applied := c.state.Trim(int64(15_000 * time.Second))
	require.True(t, applied.Resized)
	left := c.state.Stats()
	require.Less(t, left.WindowCapacity, large)
	require.GreaterOrEqual(t, left.WindowCapacity, left.WindowEvents)
	c.wholeFrom(left.Oldest)

	require.True(t, c.state.Trim(int64(time.Hour*24)).Resized)
	require.Equal(t, small, c.state.Stats().WindowCapacity)
}

// A window around one size must not resize again and again.
func TestRingDoesNotThrash(t *testing.T) {
	for _, size := range []int{15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257} {
		c := newCounter(t, watchcache.Config{History: time.Duration(size) * time.Second, WindowBytes: 1 << 40})
		resized := 0
		for range 1000 {
			if c.apply(1).Resized {
				resized++
			}
			c.dispatchAll()
		}
		require.LessOrEqual(t, resized, 4, "a window of %d events", size)
	}
}

// Regression 44: a ring that shrinks while it is part full, and wrapped,
// keeps its events and never moves its start backwards.
func TestShrinkingNeverMovesTheStartBack(t *testing.T) {
	for _, full := range []int{64, 65, 128, 129, 500} {
		for _, offset := range []int{0, 1, 17, 31, 32, 62, 63, 64, 65} {
			c := newCounter(t, watchcache.Config{History: time.Second, WindowBytes: 1 << 40})
			c.apply(offset)
			c.dispatchAll()
			c.state.Trim(int64(24 * time.Hour))
			c.apply(full)
			start := c.state.Stats().Oldest
			for _, left := range []int{full / 2, full / 4, full / 5, full / 8, 3, 1, 0} {
				end := c.state.Stats().Next
				c.state.Dispatched(end - watchcache.Position(left))
				c.state.Trim(int64(24 * time.Hour))
				stats := c.state.Stats()
				require.GreaterOrEqual(t, stats.Oldest, start)
				require.Equal(t, left, stats.WindowEvents)
				c.wholeFrom(stats.Oldest)
				start = stats.Oldest
			}
		}
	}
}

// A source that restarts its clock, or changes that carry older times than
// Trim was told, never lets events go early.
func TestTimesThatGoBack(t *testing.T) {
	s := watchcache.New(watchcache.Config{History: 10 * time.Second, WindowBytes: 1 << 40})
	apply(t, s, receivedAt(100*time.Second, added("a", 1, "1")), receivedAt(80*time.Second, added("b", 2, "1")),
		receivedAt(101*time.Second, added("c", 3, "1")))
	s.Dispatched(s.Stats().Next)
	require.Zero(t, s.Trim(int64(110*time.Second)).Evicted, "b waits behind a")
	require.Equal(t, 2, s.Trim(int64(111*time.Second)).Evicted)
	require.Equal(t, uint64(2), s.Stats().OldestRV)
}

// Pick has events of the window only.
func TestPick(t *testing.T) {
	s := watchcache.New(watchcache.Config{History: 100, WindowBytes: 1 << 40})
	s.Replace(nil, 1)
	for rv := uint64(2); rv < 22; rv++ {
		apply(t, s, receivedAt(time.Duration(rv), added(fmt.Sprint("/", rv), rv, "1")))
	}
	s.Dispatched(s.Stats().Next)
	s.Trim(113) // forgets what was received before 13
	first := s.Stats().Oldest
	buf := make([]*watchcache.Event, 2)
	require.ErrorIs(t, s.Pick(first-1, []watchcache.Position{first}, buf), watchcache.ErrExpired)
	require.NoError(t, s.Pick(first, []watchcache.Position{first, first + 4}, buf))
	require.Equal(t, []uint64{13, 17}, []uint64{buf[0].RV, buf[1].RV})
}

// The window may have as many bytes as it is given, and says what it has to drop for
// want of more.
func TestWindowIsFullAtItsBound(t *testing.T) {
	filled := func(bytes int64) *watchcache.State {
		s := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: bytes})
		s.Replace([]*watchcache.Element{element("a", 1, "1")}, 1)
		apply(t, s, modified("a", 2, "2"), modified("a", 3, "3"))
		s.Dispatched(s.Stats().Next)
		return s
	}
	bytes := filled(1 << 40).Stats().WindowBytes
	s := filled(bytes)
	require.Equal(t, watchcache.Applied{}, s.Trim(0))
	require.Equal(t, 2, s.Stats().WindowEvents)
	s = filled(bytes - 1)
	applied := s.Trim(0)
	require.Equal(t, [2]int{1, 1}, [2]int{applied.Evicted, applied.Cut})
	s = filled(bytes)
	applied = s.Trim(int64(2 * time.Hour))
	require.Equal(t, [2]int{2, 0}, [2]int{applied.Evicted, applied.Cut}, "they are old")
}

// Superseded adds up what has left the state, by changes and by lists.
func TestSuperseded(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1")}, 1)
	begun := s.Stats()
	apply(t, s, modified("a", 2, "2"))
	changed := s.Stats()
	require.Greater(t, changed.Superseded, begun.Superseded)
	s.Replace(nil, 3)
	require.Equal(t, changed.Superseded+changed.ObjectBytes, s.Stats().Superseded)
}
