// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/storage"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// windowOfSix returns a supervisor whose window has six old events, and what has a new
// watcher begin after so many of them.
func windowOfSix(t *testing.T) (s *supervisor, begin func(after watchcache.Position) *replayer, oldest func() watchcache.Position) {
	clock := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	d := idleFanout(clock)
	d.State = watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1 << 40, HeldBytes: 1 << 40})
	d.State.Replace(nil, 5)
	first := d.State.Stats().Next
	for i := range uint64(6) {
		if _, err := d.State.Apply(watchcache.Change{
			Type: watchcache.Added, RV: 6 + i, Whole: true,
			Element: &watchcache.Element{Key: "/pods/a/" + strconv.FormatUint(i, 10), RV: 6 + i},
		}); err != nil {
			panic(err)
		}
	}
	d.State.Dispatched(first + 6)
	s = d.supervisor
	begin = func(after watchcache.Position) *replayer {
		r := d.addWith(t, &watcher{}, match.NewQuery("/pods/", true, storage.Everything), first+after).replayer
		s.hold(r)
		return r
	}
	oldest = func() watchcache.Position {
		d.State.Trim(int64(time.Hour))
		return d.State.Stats().Oldest - first
	}
	return s, begin, oldest
}

// Of several new watchers that come further, the window waits for the one that is
// furthest behind.
func TestWindowWaitsForTheSlowest(t *testing.T) {
	s, begin, oldest := windowOfSix(t)
	for _, after := range []watchcache.Position{4, 2, 5} {
		begin(after)
	}
	s.look()
	require.EqualValues(t, 2, oldest())
}

// The window waits for a new watcher from its beginning on, not from the supervisor's
// next look on.
func TestWindowWaitsBeforeTheNextLook(t *testing.T) {
	_, begin, oldest := windowOfSix(t)
	begin(3)
	begin(4)
	require.EqualValues(t, 3, oldest())
}

// A replayer that finds the channel full goes back to the event that it is at.
func TestWindowWaitsForWhatIsAtHand(t *testing.T) {
	s, begin, oldest := windowOfSix(t)
	r := begin(2)
	r.next.Add(3)
	s.look()
	require.EqualValues(t, 2, oldest())
}

// A look that is under way does not know of a watcher that begins.
func TestWindowWaitsForOneThatBeginsDuringALook(t *testing.T) {
	s, begin, oldest := windowOfSix(t)
	begin(4)
	s.mu.newcomers = nothing
	begin(1)
	s.keep(s.State.Stats().Oldest+4, true)
	require.EqualValues(t, 1, oldest())
}

// Once no watcher is behind, the window waits for none.
func TestWindowDoesNotWaitForThoseThatAreGone(t *testing.T) {
	s, begin, oldest := windowOfSix(t)
	begin(2).watcher.Stop()
	s.look()
	require.EqualValues(t, 6, oldest())
}
