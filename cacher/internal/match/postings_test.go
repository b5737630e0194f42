// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// changing is a state that changes at random, with a window that forgets.
type changing struct {
	t       *rapid.T
	state   *watchcache.State
	rv      uint64
	present map[string]bool
}

func (c *changing) pod(key string) *watchcache.Element {
	app := rapid.SampledFrom([]string{"1", "2", "3"}).Draw(c.t, "app")
	node := rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(c.t, "node")
	attributes := []string{"spec.nodeName=" + node}
	if rapid.Bool().Draw(c.t, "labelled") {
		attributes = append(attributes, "app="+app)
	}
	return pod(key, c.rv, attributes...)
}

// step makes one change, or has the window forget some.
func (c *changing) step() {
	c.rv++
	key := rapid.SampledFrom([]string{"a/one", "a/two", "b/one", "b/two", "c/one"}).Draw(c.t, "key")
	what := rapid.IntRange(0, 40).Draw(c.t, "what")
	switch {
	case what == 0:
		c.present = map[string]bool{key: true}
		c.state.Replace([]*watchcache.Element{c.pod(key)}, c.rv)
		return
	case what < 4:
		c.state.Trim(int64(c.rv))
		return
	}
	change := watchcache.Change{Type: watchcache.Added, Element: c.pod(key), RV: c.rv, Received: int64(c.rv), Whole: true}
	if c.present[key] {
		change.Type = watchcache.Modified
		if what < 12 {
			change.Type = watchcache.Deleted
		}
	}
	c.present[key] = change.Type != watchcache.Deleted
	_, err := c.state.Apply(change)
	require.NoError(c.t, err)
	c.state.Dispatched(c.state.Stats().Next)
}

// Of the events that postings pass over none affects the query, whatever has
// become of the window in between.
func TestPostingsPassOverNothing(t *testing.T) {
	x := podIndexes()
	queries := []Query{
		ask(t, "/pods/a/one", "", ""), ask(t, "/pods/a/", "", ""), ask(t, "/pods/", "app=1", ""),
		ask(t, "/pods/", "app in (1,2)", ""), ask(t, "/pods/b/", "app=3", ""), ask(t, "/pods/", "", "spec.nodeName=n1"),
		ask(t, "/pods/", "", "spec.nodeName="), ask(t, "/pods/", "", "metadata.name=two"), ask(t, "/pods/", "gone=1", ""),
	}
	looked := 0
	rapid.Check(t, func(t *rapid.T) {
		c := &changing{t: t, state: watchcache.New(watchcache.Config{History: 100, WindowBytes: 1 << 40, Indexes: x.OfState()}), present: map[string]bool{}}
		c.state.Replace(nil, 1)
		c.rv = 1
		postings := NewPostings(x, c.state)
		for range rapid.IntRange(1, 12).Draw(t, "rounds") {
			for range rapid.IntRange(0, 60).Draw(t, "changes") {
				c.step()
			}
			if rapid.Bool().Draw(t, "trim") {
				postings.Trim()
			}
			q := rapid.SampledFrom(queries).Draw(t, "query")
			stats := c.state.Stats()
			from := watchcache.Position(rapid.Uint64Range(uint64(stats.Oldest), uint64(stats.Next)).Draw(t, "from"))
			want := map[watchcache.Position]bool{}
			for _, e := range eventsFrom(t, c.state, from) {
				if q.Outcome(e, false) != Unaffected {
					want[e.Position] = true
				}
			}
			found := make([]*watchcache.Event, rapid.IntRange(1, 32).Draw(t, "room"))
			for at := from; ; {
				n, to, ok := postings.Events(&q, at, found)
				if !ok {
					break
				}
				looked++
				last := at
				for _, e := range found[:n] {
					p := e.Position
					require.True(t, p >= last && p < to, "position %d is not in [%d,%d)", p, last, to)
					last = p + 1
					delete(want, p)
				}
				require.GreaterOrEqual(t, to, at)
				if n < len(found) {
					require.Equal(t, stats.Next, to)
					require.Empty(t, want, "events that affect %v were passed over", q.Name())
					break
				}
				at = to
			}
		}
	})
	require.Positive(t, looked, "no postings were ever made")
}

func eventsFrom(t require.TestingT, s *watchcache.State, from watchcache.Position) []*watchcache.Event {
	events := make([]*watchcache.Event, s.Stats().Next-from)
	n, _, err := s.Since(from, events)
	require.NoError(t, err)
	require.Len(t, events, n)
	return events
}

// newChanges returns a state with n events of which each tenth has the label app=7, all dispatched.
func newChanges(t *testing.T, x *Indexes, n int) *watchcache.State {
	state := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1 << 40, BackfillEvents: 1 << 20, Indexes: x.OfState()})
	state.Replace(nil, 1)
	for i := range n {
		rv := uint64(2 + i)
		_, err := state.Apply(watchcache.Change{Type: watchcache.Added, Element: pod(fmt.Sprintf("a/%d", i), rv, fmt.Sprintf("app=%d", i%10)), RV: rv, Received: int64(rv), Whole: true})
		require.NoError(t, err)
	}
	state.Dispatched(state.Stats().Next)
	return state
}

// Postings are made when they are needed, and let go when the window has moved past them.
func TestPostingsAreMadeOnDemand(t *testing.T) {
	x := podIndexes()
	const events = 1000
	state := newChanges(t, x, events)
	q := ask(t, "/pods/", "app=7", "")
	postings, first := NewPostings(x, state), state.Stats().Oldest
	var found [10]*watchcache.Event
	positions := func(n int) (at []watchcache.Position) {
		for _, e := range found[:n] {
			at = append(at, e.Position-first)
		}
		return at
	}

	require.Zero(t, postings.Bytes())
	n, to, ok := postings.Events(&q, first+events-100, found[:])
	require.True(t, ok)
	require.Equal(t, 10, n)
	require.Equal(t, first+events-2, to)
	n, to, ok = postings.Events(&q, to, found[:])
	require.True(t, ok)
	require.Zero(t, n)
	require.Equal(t, state.Stats().Next, to)
	require.Equal(t, int64(events*12+10*80), postings.Bytes())
	postings.Trim()
	require.Equal(t, int64(events*12+10*80), postings.Bytes(), "postings of the whole window were forgotten")

	n, to, ok = postings.Events(&q, first, found[:3])
	require.True(t, ok)
	require.Equal(t, 3, n)
	require.Equal(t, []watchcache.Position{7, 17, 27}, positions(n))
	require.Equal(t, first+28, to)

	several := ask(t, "/pods/", "app in (3,7)", "")
	n, _, ok = postings.Events(&several, first, found[:4])
	require.True(t, ok)
	require.Equal(t, []watchcache.Position{3, 7, 13, 17}, positions(n))

	for i := range maxPostings + 5 {
		other := ask(t, "/pods/", fmt.Sprintf("label-%d=1", i), "")
		postings.Events(&other, first, found[:])
	}
	require.LessOrEqual(t, len(postings.mu.of), maxPostings)

	for forget, keep := range map[int]bool{events/2 - 10: true, events/2 + 10: false} {
		of := newChanges(t, x, events)
		p := NewPostings(x, of)
		_, _, ok := p.Events(&q, of.Stats().Oldest, found[:])
		require.True(t, ok)
		of.Trim(int64(time.Hour) + 2 + int64(forget))
		p.Trim()
		require.Equal(t, keep, p.Bytes() > 0, "after %d of %d events have left the window", forget, events)
	}

	state.Trim(int64(3 * time.Hour))
	require.Equal(t, state.Stats().Next, state.Stats().Oldest, "the window is not empty")
	rv := uint64(2 + events)
	_, err := state.Apply(watchcache.Change{Type: watchcache.Added, Element: pod("b/one", rv), RV: rv, Received: int64(3 * time.Hour), Whole: true})
	require.NoError(t, err)
	state.Dispatched(state.Stats().Next)
	state.Trim(int64(6 * time.Hour))
	postings.Trim()
	require.Empty(t, postings.mu.of, "postings that the window has moved past")
	require.Zero(t, postings.Bytes())
}

// Events that State.Backfill has put before those that postings have are not passed
// over, whether postings are asked for or trimmed first.
func TestPostingsOfBackfilledEvents(t *testing.T) {
	for _, trim := range []bool{false, true} {
		x := podIndexes()
		state := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1 << 40, BackfillEvents: 10, Indexes: x.OfState()})
		state.Replace([]*watchcache.Element{pod("a/one", 30, "app=1")}, 30)
		listed := state.Latest()
		for rv := uint64(31); rv < 40; rv++ {
			_, err := state.Apply(watchcache.Change{Type: watchcache.Modified, Element: pod("a/one", rv, "app=1"), RV: rv, Whole: true})
			require.NoError(t, err)
		}
		postings, q := NewPostings(x, state), ask(t, "/pods/", "app=1", "")
		found := make([]*watchcache.Event, 20)
		find := func() int {
			n, _, ok := postings.Events(&q, state.Stats().Oldest, found)
			require.True(t, ok)
			return n
		}
		require.Equal(t, 9, find())
		_, err := state.Backfill(listed, 10, []watchcache.Change{
			{Type: watchcache.Added, Element: pod("b/one", 15, "app=1"), RV: 15},
			{Type: watchcache.Deleted, Element: pod("b/one", 20, "app=1"), RV: 20},
			{Type: watchcache.Added, Element: pod("a/one", 30, "app=1"), RV: 30},
		}, nil, 0)
		require.NoError(t, err)
		if trim {
			postings.Trim()
		}
		require.Equal(t, 12, find())
		require.Equal(t, state.Stats().Oldest, found[0].Position)
	}
}

// Postings that would take too much memory beside a window of small events are refused, and are
// made again for the events that come later. Long values take no more than short ones.
func TestPostingsAreBounded(t *testing.T) {
	x := podIndexes()
	state := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1 << 40, Indexes: x.OfState()})
	state.Replace(nil, 1)
	postings := NewPostings(x, state)
	rv := uint64(1)
	add := func(events int, value func(i int) string) {
		for i := range events {
			rv++
			element := pod(fmt.Sprintf("a/%d", rv), rv, "app="+value(i))
			_, err := state.Apply(watchcache.Change{Type: watchcache.Added, Element: element, RV: rv, Received: int64(rv), Whole: true})
			require.NoError(t, err)
		}
	}
	found := make([]*watchcache.Event, 10)
	q := ask(t, "/pods/", "app=5", "")
	events := func(from watchcache.Position) (n int, ok bool) {
		n, _, ok = postings.Events(&q, from, found)
		return n, ok
	}
	long := strings.Repeat("x", 100_000)
	add(20, func(i int) string { return long + strconv.Itoa(i) })
	add(1000, strconv.Itoa)
	n, ok := events(state.Stats().Oldest)
	require.True(t, ok)
	require.Equal(t, 1, n)
	require.Less(t, postings.Bytes(), int64(200_000))

	first := state.Stats().Next
	add(40_000, strconv.Itoa)
	_, ok = events(first)
	require.False(t, ok, "postings of %d bytes beside a window of %d", postings.Bytes(), state.Stats().WindowBytes)
	require.Zero(t, postings.Bytes())
	state.Dispatched(state.Stats().Next)
	state.Trim(int64(rv) + int64(time.Hour) - 500) // the last events stay
	n, ok = events(state.Stats().Oldest)
	require.True(t, ok, "postings are refused for good")
	require.Zero(t, n)
}
