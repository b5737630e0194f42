// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"math"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/internal/rounds"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// always has all events but the first go in rounds.
func always(events int) rounds.Limits {
	return rounds.Limits{Queued: 1, Events: events, OneCore: true}
}

// roundFixture is a Fanout, what was parked, and a state to be changed.
type roundFixture struct {
	*Fanout
	t        require.TestingT
	rv       uint64
	colors   map[string]string // of the objects that there are, by key
	watchers []*watcher
	parked   []string
	// parks is called before a watcher is parked.
	parks func(*watcher)
}

func newRoundFixture(t require.TestingT, limits rounds.Limits) *roundFixture {
	f := &roundFixture{
		Fanout: idleFanout(clocktesting.NewFakeClock(time.Unix(1_000_000, 0))), t: t,
		rv: 5, colors: map[string]string{}, parks: func(*watcher) {},
	}
	f.limits = limits
	f.park = func(w *watcher, position watchcache.Position, unsent uint64) {
		f.parks(w)
		ok := f.registry.park(f.newReplayer(w, position), unsent)
		f.parked = append(f.parked, fmt.Sprintf("watcher %d at %d: %v", w.id, position, ok))
	}
	f.State.Replace(nil, f.rv)
	f.advance()
	return f
}

// watch has a watcher go live that has seen all before the next event and some that
// come.
func (f *roundFixture) watch(selector string, buffer int, ahead watchcache.Position) *watcher {
	predicate := storage.Everything
	if selector != "" {
		parsed, err := labels.Parse(selector)
		require.NoError(f.t, err)
		predicate = storage.SelectionPredicate{Label: parsed, Field: fields.Everything()}
	}
	w := f.addWith(f.t, &watcher{result: make(chan watch.Event, buffer)}, match.NewQuery("/pods/", true, predicate), 0)
	require.True(f.t, f.registry.goLive(w, f.State.Stats().Next+ahead))
	f.watchers = append(f.watchers, w)
	return w
}

// put gives an object a color, "" deletes it.
func (f *roundFixture) put(key, color string) {
	before, existed := f.colors[key]
	change := watchcache.Change{Type: watchcache.Modified, RV: f.rv + 1, Whole: true}
	switch {
	case !existed && color == "":
		return
	case !existed:
		change.Type = watchcache.Added
	case color == "":
		change.Type, color = watchcache.Deleted, before
	}
	f.rv++
	f.colors[key] = color
	if change.Type == watchcache.Deleted {
		delete(f.colors, key)
	}
	change.Element = &watchcache.Element{
		Key: key, RV: f.rv, Labels: labels.Set{"color": color},
		Object: &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: key[6:], ResourceVersion: strconv.FormatUint(f.rv, 10)}},
	}
	_, err := f.State.Apply(change)
	require.NoError(f.t, err)
}

// queue puts so many objects.
func (f *roundFixture) queue(n int) {
	for range n {
		f.put(fmt.Sprintf("/pods/p%d", f.rv), "red")
	}
}

// events returns what is in a watcher's channel, and "closed" if it is closed.
func (f *roundFixture) events(w *watcher) (out []string) {
	for {
		select {
		case event, ok := <-w.result:
			if !ok {
				return append(out, "closed")
			}
			o, ok := event.Object.(*dispatched)
			require.True(f.t, ok, "an event of %T", event.Object)
			out = append(out, fmt.Sprintf("%s %d", event.Type, o.element.RV))
		default:
			return out
		}
	}
}

// seen returns all that can be seen of the watchers and the dispatcher.
func (f *roundFixture) seen() (out []string) {
	for _, w := range f.watchers {
		out = append(out, fmt.Sprintf("watcher %d: %v, sent %d, live %v, at %d", w.id, f.events(w), w.sent.Load(), w.is(live), w.position))
	}
	return append(out, fmt.Sprintf("cursor %d", f.registry.mu.cursor))
}

// Watchers that do not read have in the end what they have when each event is
// dispatched by itself, whatever comes: the same events in the same order, and those
// with full channels are parked at the same events.
func TestRoundsBringWhatSingleEventsBring(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alone, together := newRoundFixture(t, rounds.Limits{}), newRoundFixture(t, always(rapid.IntRange(2, 6).Draw(t, "events of a round")))
		for range rapid.IntRange(1, 4).Draw(t, "batches") {
			for range rapid.IntRange(0, 3).Draw(t, "watchers") {
				selector := rapid.SampledFrom([]string{"", "color=red", "color=blue", "color!=red"}).Draw(t, "selector")
				buffer, ahead := rapid.IntRange(0, 7).Draw(t, "buffer"), watchcache.Position(rapid.IntRange(0, 5).Draw(t, "ahead"))
				for _, f := range []*roundFixture{alone, together} {
					f.watch(selector, buffer, ahead)
				}
			}
			for range rapid.IntRange(0, 12).Draw(t, "changes") {
				key := rapid.SampledFrom([]string{"/pods/a", "/pods/b", "/pods/c"}).Draw(t, "key")
				color := rapid.SampledFrom([]string{"red", "blue", ""}).Draw(t, "color")
				alone.put(key, color)
				together.put(key, color)
			}
			if n := len(alone.watchers); n > 0 && rapid.Bool().Draw(t, "one leaves") {
				i := rapid.IntRange(0, n-1).Draw(t, "which")
				for _, f := range []*roundFixture{alone, together} {
					if f.watchers[i].is(live) {
						f.watchers[i].Stop()
					}
				}
			}
			alone.advance()
			together.advance()
			require.Equal(t, alone.seen(), together.seen())
			assert.ElementsMatch(t, alone.parked, together.parked)
		}
	})
}

// A watcher whose channel is full in the middle of a round is parked at the first
// event that is not in its channel, and the round goes on for the others.
func TestStalledInTheMiddleOfARound(t *testing.T) {
	f := newRoundFixture(t, always(8))
	stalled, healthy := f.watch("", 3, 0), f.watch("", 8, 0)
	next := f.State.Stats().Next
	f.queue(8)
	f.advance()
	assert.Equal(t, []string{fmt.Sprintf("watcher %d at %d: true", stalled.id, next+3)}, f.parked)
	assert.Equal(t, next+3, stalled.position)
	assert.EqualValues(t, 3, stalled.sent.Load())
	assert.Equal(t, []string{"ADDED 6", "ADDED 7", "ADDED 8"}, f.events(stalled))
	assert.Len(t, f.events(healthy), 8)
	assert.True(t, healthy.is(live))
}

// While the dispatcher's time budget lasts, a client that reads slowly gets the rest of
// its round and is not parked.
func TestRoundWaitsWithinTheBudget(t *testing.T) {
	f := newRoundFixture(t, always(8))
	f.DispatchBudget = time.Second
	slow := f.watch("", 1, 0)
	f.queue(8)
	got := make(chan []string)
	go func() {
		var events []string
		for event := range slow.result {
			events = append(events, string(event.Type))
		}
		got <- events
	}()
	f.advance()
	assert.Empty(t, f.parked)
	slow.Stop()
	assert.Len(t, <-got, 8)
}

// A watcher that ends in the middle of a round has its channel closed after the
// round, and not while the dispatcher may still send to it.
func TestEndsInTheMiddleOfARound(t *testing.T) {
	f := newRoundFixture(t, always(8))
	first, second, third := f.watch("", 1, 0), f.watch("", 1, 0), f.watch("", 8, 0)
	f.parks = func(w *watcher) {
		if w == first {
			second.Stop()
			third.Stop()
		}
	}
	f.queue(4)
	require.NotPanics(t, func() { f.advance() })
	assert.Equal(t, []string{"ADDED 6", "closed"}, f.events(second))
	assert.Equal(t, []string{"ADDED 6", "ADDED 7", "ADDED 8", "ADDED 9", "closed"}, f.events(third))
	assert.False(t, first.is(closed))
}

// While a round is under way, a watcher that catches up goes live only once it has
// seen all of the round.
func TestGoesLiveBehindARound(t *testing.T) {
	f := newRoundFixture(t, always(8))
	begin := f.State.Stats().Next
	stalled := f.watch("", 1, 0)
	late := f.addWith(t, &watcher{result: make(chan watch.Event, 8)}, match.NewQuery("/pods/", true, storage.Everything), 0)
	f.parks = func(w *watcher) {
		require.Same(t, stalled, w)
		for at := range watchcache.Position(4) {
			assert.False(t, f.registry.goLive(late, begin+at), "a watcher goes live before event %d of the round", at)
		}
		assert.True(t, f.registry.goLive(late, begin+4))
	}
	f.queue(4)
	f.advance()
	require.Len(t, f.parked, 1)
	assert.Empty(t, f.events(late))
}

// A bookmark after a round names the round's last event, and only a watcher that
// has all of it gets one.
func TestBookmarkAfterARound(t *testing.T) {
	f := newRoundFixture(t, always(8))
	_, healthy := f.watch("", 2, 0), f.watch("", 8, 0)
	for _, w := range f.watchers {
		f.registry.mu.bookmarks.schedule(w, 0)
	}
	f.queue(4)
	f.advance()
	due, rv := f.registry.beginBookmarks(0, math.MaxInt64, nil)
	f.registry.finish()
	assert.Equal(t, []*watcher{healthy}, due)
	assert.EqualValues(t, 9, rv)
}

// Rounds have several events only if one has gone to many watchers, many are queued, and
// clients can run beside the dispatcher.
func TestWhenThereAreRounds(t *testing.T) {
	for _, tc := range []struct {
		name                              string
		cores, watchers, queued, capacity int
		want                              bool
	}{
		{"a backlog for many", 2, 20, 10, 8, true},
		{"one core", 1, 20, 10, 8, false},
		{"few watchers", 2, 19, 10, 8, false},
		{"few events", 2, 20, 9, 8, false},
		{"a channel for one event", 2, 20, 10, 1, false},
		{"a channel for none", 2, 20, 10, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(tc.cores))
			f := newRoundFixture(t, rounds.Limits{Watchers: 20, Queued: 10, Events: tc.capacity})
			for range tc.watchers {
				f.watch("", 2*tc.queued, 0)
			}
			f.queue(tc.queued)
			f.advance()
			assert.Equal(t, tc.want, f.inRounds(tc.queued) && f.matched >= f.limits.Watchers)
			f.Close()
			for _, w := range f.watchers {
				assert.Len(t, f.events(w), tc.queued+1, "events and the end of the channel")
			}
		})
	}
}

// The memory that a round has taken is given up, so that an idle cache keeps none of it.
func TestRoundIsGivenUp(t *testing.T) {
	f := newRoundFixture(t, always(8))
	f.watch("", 8, 0)
	f.queue(4)
	f.advance()
	require.NotNil(t, f.round)
	assert.Empty(t, f.round.turns[:1][0], "a watcher of a round that is over")
	assert.Nil(t, f.round.groups[:1][0].group, "a group of a round that is over")
	assert.Nil(t, f.round.made[0][match.Enters].Object, "an event of a round that is over")
	f.tick()
	assert.Nil(t, f.round)
}

// Regression 133: a watcher that has gone live ahead of the dispatcher, and whose next
// event has left the window, is parked at its own position and not at the dispatcher's.
func TestWatcherAheadIsParkedAtItsOwnPosition(t *testing.T) {
	f := newRoundFixture(t, always(8))
	begin := f.State.Stats().Next
	level, ahead := f.watch("", 8, 0), f.watch("", 8, 3)
	f.queue(4)
	f.State.Dispatched(begin + 4)
	f.State.Trim(int64(2 * time.Hour))
	require.Equal(t, begin+4, f.State.Stats().Oldest, "the window's oldest event")
	f.advance()
	require.Len(t, f.parked, 2)
	assert.Equal(t, begin, level.position)
	assert.Equal(t, begin+3, ahead.position)
}
