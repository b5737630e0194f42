// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unique"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// listedFanout returns an idle Fanout that has dispatched a first list without objects.
func listedFanout() (*Fanout, *watchcache.Snapshot) {
	d := idleFanout(clocktesting.NewFakeClock(time.Unix(1_000_000, 0)))
	d.State.Replace(nil, 5)
	d.advance()
	return d, d.State.Latest()
}

// addLive adds a watcher that has everything of the snapshot and is live.
func addLive(t *testing.T, d *Fanout, snapshot *watchcache.Snapshot) *watcher {
	w := addWatcher(t, d, snapshot)
	require.True(t, d.registry.goLive(w, snapshot.Next()), "the watcher does not go live")
	return w
}

// Regression 39: a watcher ends between the moment when the dispatcher has looked
// whom to send to and the send. Its channel is closed after that, and not before.
func TestChannelOfAnEndedWatcherIsClosedAfterTheLastSend(t *testing.T) {
	d, snapshot := listedFanout()
	w := addLive(t, d, snapshot)

	d.advance() // which goes beyond the list
	due, _ := d.registry.beginBookmarks(0, math.MaxInt64, nil)
	require.Equal(t, []*watcher{w}, due)
	w.Stop()
	require.NotPanics(t, func() { w.result <- watch.Event{Type: watch.Modified} }, "the channel is closed")
	d.registry.finish()
	event, open := <-w.result
	require.True(t, open)
	require.Equal(t, watch.Modified, event.Type)
	_, open = <-w.result
	require.False(t, open, "the channel is never closed")
}

// A watcher that has read the window to its end, before the dispatcher dispatched one
// more event, has missed that event if it goes live now.
func TestNoWatcherGoesLiveBehindTheDispatcher(t *testing.T) {
	d, snapshot := listedFanout()
	w := addWatcher(t, d, snapshot)
	_, err := d.State.Apply(watchcache.Change{Type: watchcache.Added, RV: 6, Element: &watchcache.Element{Key: "/pods/a/b", RV: 6}})
	require.NoError(t, err)
	require.True(t, d.advance(), "there is nothing to dispatch")

	require.False(t, d.registry.goLive(w, snapshot.Next()), "the watcher goes live without the event")
	require.True(t, d.registry.goLive(w, snapshot.Next()+1), "a watcher that has the event does not go live")
}

// A list ends the live watchers that would have needed an event before it, be it the
// last one, and no others.
func TestListEndsWatchersBehindIt(t *testing.T) {
	d, snapshot := listedFanout()
	w := addLive(t, d, snapshot)

	require.Empty(t, d.registry.restart(snapshot.Next()), "the watcher has everything before the list")
	require.Equal(t, []*watcher{w}, d.registry.restart(snapshot.Next()+1))
}

func (w *watcher) expectFailure(t *testing.T) {
	event, open := <-w.result
	require.True(t, open, "the watcher has ended without a word")
	require.Equal(t, watch.Error, event.Type)
	_, open = <-w.result
	require.False(t, open, "the watcher goes on")
}

// The state follows its storage again before the dispatcher has sent the failure: that ends
// the watchers of before, and not one that began since.
func TestFailureEndsNoWatcherThatBeganAfterIt(t *testing.T) {
	d, snapshot := listedFanout()
	before := addLive(t, d, snapshot)
	d.Fail(watch.Event{Type: watch.Error, Object: &metav1.Status{Code: 410}})
	d.ClearFailure()
	after := addLive(t, d, snapshot)

	d.sendFailures()
	before.expectFailure(t)
	require.Empty(t, after.result)
	require.False(t, after.is(closed), "a watcher that began after the failure has ended with it")
	require.Nil(t, d.failing.Load())
}

// A watcher that goes live after the failure was sent, and before the state was listed, gets
// it as well: its client must not resume from what it has.
func TestFailureReachesWatchersThatGoLiveBeforeTheList(t *testing.T) {
	for _, sees := range []bool{true, false} { // the dispatcher sees the list first, or the end of the failure
		d, snapshot := listedFanout()
		w := addWatcher(t, d, snapshot)
		d.Fail(watch.Event{Type: watch.Error, Object: &metav1.Status{Code: 410}})
		d.sendFailures()
		require.True(t, d.registry.goLive(w, snapshot.Next()))
		d.State.Replace(nil, 6)
		d.ClearFailure()
		if !sees {
			d.sendFailures()
		}
		d.advance()
		w.expectFailure(t)
		require.Nil(t, d.failing.Load())
	}
}

// The record of a watch that has ended keeps little of what its client has sent, and tells how
// far it was behind when it failed.
func TestRecordOfAnEndedWatch(t *testing.T) {
	d, snapshot := listedFanout()
	w := addLive(t, d, snapshot)
	w.client = unique.Make(status.Client{UserAgent: strings.Repeat("x", 1<<20), Address: strings.Repeat("x", 1<<20)})
	for i := range uint64(cap(w.result)) {
		_, err := d.State.Apply(watchcache.Change{Type: watchcache.Added, RV: 6 + i, Element: &watchcache.Element{Key: fmt.Sprint("/pods/a/", i), RV: 6 + i}, Whole: true})
		require.NoError(t, err)
	}
	require.True(t, d.advance())
	require.Len(t, w.result, cap(w.result), "the channel has room")
	d.Fail(watch.Event{Type: watch.Error, Object: &metav1.Status{Code: 410}})
	d.sendFailures()
	ended := d.Endings()
	require.Len(t, ended, 1)
	require.Zero(t, ended[0].Lag)
	require.Less(t, len(ended[0].Client.UserAgent)+len(ended[0].Client.Address), 1<<12)
}

// No event looks up a query whose watchers have all gone, and no watcher's context
// knows the watcher any more: clients that come and go leave nothing behind.
func TestNothingIsFiledForWatchersThatHaveEnded(t *testing.T) {
	d, snapshot := listedFanout()
	var watchers []*watcher
	for range 2 {
		watchers = append(watchers, addLive(t, d, snapshot))
	}
	filed := func(position watchcache.Position) (n int) {
		e := &watchcache.Event{Type: watchcache.Added, Position: position, Element: &watchcache.Element{Key: "/pods/a/b", RV: 6}}
		d.registry.mu.groups.Candidates(e, func(*match.Group[*watcher]) { n++ })
		return n
	}
	require.Equal(t, 1, filed(6))
	watchers[0].Stop()
	require.Equal(t, 1, filed(7), "one of two watchers has ended")
	watchers[1].Stop()
	require.Zero(t, filed(8))
	for _, w := range watchers {
		require.False(t, w.stopAfterFunc(), "the end of the context would end the watcher once more")
	}
}
