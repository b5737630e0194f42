// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// windowOfSix returns a supervisor whose window has six old events, and what has a new
// watcher begin after so many of them.
func windowOfSix() (s *supervisor, begin func(after watchcache.Position) *replayer, oldest func() watchcache.Position) {
	clock := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	d := idleDispatcher(clock)
	d.state = watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1 << 40, HeldBytes: 1 << 40})
	d.state.Replace(nil, 5)
	first := d.state.Stats().Next
	for i := range uint64(6) {
		if _, err := d.state.Apply(watchcache.Change{
			Type: watchcache.Added, RV: 6 + i, Whole: true,
			Element: &watchcache.Element{Key: "/pods/a/" + strconv.FormatUint(i, 10), RV: 6 + i},
		}); err != nil {
			panic(err)
		}
	}
	d.state.Dispatched(first + 6)
	s = &supervisor{state: d.state, registry: d.registry, time: timeline.New(clock)}
	begin = func(after watchcache.Position) *replayer {
		r := (&replays{state: d.state, registry: d.registry, supervisor: s}).newReplayer(&watcher{registry: d.registry}, make(chan struct{}), first+after)
		r.begin(nil)
		s.add(r)
		return r
	}
	oldest = func() watchcache.Position {
		d.state.Trim(int64(time.Hour))
		return d.state.Stats().Oldest - first
	}
	return s, begin, oldest
}

// Of several new watchers that come further, the window waits for the one that is
// furthest behind.
func TestWindowWaitsForTheSlowest(t *testing.T) {
	s, begin, oldest := windowOfSix()
	for _, after := range []watchcache.Position{4, 2, 5} {
		begin(after)
	}
	s.look()
	require.EqualValues(t, 2, oldest())
}

// The window waits for a new watcher from its beginning on, not from the supervisor's
// next look on.
func TestWindowWaitsBeforeTheNextLook(t *testing.T) {
	_, begin, oldest := windowOfSix()
	begin(3)
	begin(4)
	require.EqualValues(t, 3, oldest())
}

// A replayer that finds the channel full goes back to the event that it is at.
func TestWindowWaitsForWhatIsAtHand(t *testing.T) {
	s, begin, oldest := windowOfSix()
	r := begin(2)
	r.next.Add(3)
	s.look()
	require.EqualValues(t, 2, oldest())
}

// A look that is under way does not know of a watcher that begins.
func TestWindowWaitsForOneThatBeginsDuringALook(t *testing.T) {
	s, begin, oldest := windowOfSix()
	begin(4)
	s.list()
	begin(1)
	s.keep(wanted{from: s.state.Stats().Oldest + 4, some: true})
	require.EqualValues(t, 1, oldest())
}

// Once no watcher is behind, the window waits for none.
func TestWindowDoesNotWaitForThoseThatAreGone(t *testing.T) {
	s, begin, oldest := windowOfSix()
	begin(2)
	s.remove(s.list()[0])
	s.look()
	require.EqualValues(t, 6, oldest())
}
