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
		applied := apply(c.t, c.state, receivedAt(time.Duration(c.rv)*time.Second, change))
		total.Evicted += applied.Evicted
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

// Regressions 1 and 2: a watch from before the window gets an error, right
// after a list as after an eviction.
func TestWatchFromBeforeTheWindowIsRefused(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 8, "1")}, 10)
	_, err := positionAfter(s, 9)
	require.ErrorIs(t, err, watchcache.ErrExpired)
	_, err = positionAfter(s, 10)
	require.NoError(t, err)

	// Two of three events share a resourceVersion, and leave together: a watch can continue
	// after both, not between or before them, and the history can be continued backwards.
	s = watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1 << 30, MinEvents: 1})
	s.Replace(nil, 10)
	apply(t, s, added("a", 11, "1"), added("b", 11, "1"), added("c", 12, "1"))
	s.Dispatched(s.Stats().Next)
	require.Equal(t, 2, s.Trim(int64(time.Hour)).Evicted)
	_, err = positionAfter(s, 10)
	require.ErrorIs(t, err, watchcache.ErrExpired)
	p, err := positionAfter(s, 11)
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

// A window of exactly WindowBytes keeps its events.
func TestWindowBytes(t *testing.T) {
	c := newCounter(t, watchcache.Config{History: time.Hour, WindowBytes: 1 << 40})
	c.apply(3)
	bytes := c.state.Stats().WindowBytes
	for most, evicted := range map[int64]int{bytes: 0, bytes - 1: 1} {
		c := newCounter(t, watchcache.Config{History: time.Hour, WindowBytes: most})
		c.apply(3)
		c.dispatchAll()
		require.Equal(t, evicted, c.state.Trim(0).Evicted)
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
