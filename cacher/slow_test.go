// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// counter reads a watch to its end or to a version, and checks that what it
// gets is in order and without gap.
type counter struct {
	watch.Interface
	events int
	last   uint64
	err    error
}

// readTo reads until the event at rv has come.
func (r *counter) readTo(ctx context.Context, rv uint64) {
	for r.last < rv && r.err == nil {
		select {
		case event, ok := <-r.ResultChan():
			r.take(event, ok)
		case <-ctx.Done():
			r.err = fmt.Errorf("at %d, waiting for %d: %w", r.last, rv, ctx.Err())
		}
	}
}

func (r *counter) take(event watch.Event, ok bool) {
	switch {
	case !ok:
		r.err = fmt.Errorf("closed at %d", r.last)
		return
	case event.Type == watch.Error:
		r.err = fmt.Errorf("at %d: %s", r.last, line(event))
		return
	}
	accessor, err := meta.Accessor(event.Object)
	if err != nil {
		r.err = err
		return
	}
	rv, err := storage.APIObjectVersioner{}.ParseResourceVersion(accessor.GetResourceVersion())
	if err != nil {
		r.err = err
		return
	}
	if r.last != 0 && rv != r.last+1 {
		r.err = fmt.Errorf("%d comes after %d", rv, r.last)
		return
	}
	r.last, r.events = rv, r.events+1
}

// open opens n watches over everything from the store's current version.
func open(t *testing.T, c *cacher.Cacher, store *memstore.Store, n int) (watches []*counter) {
	t.Helper()
	rv, err := store.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	for range n {
		w, err := c.Watch(t.Context(), "/pods/", storage.ListOptions{
			ResourceVersion: fmt.Sprint(rv), Predicate: storage.Everything, Recursive: true,
		})
		require.NoError(t, err)
		t.Cleanup(w.Stop)
		watches = append(watches, &counter{Interface: w, last: rv})
	}
	return watches
}

// withLongHistory keeps events however slow the machine is.
func withLongHistory(config *cacher.Config) { config.EventsHistoryWindow = time.Hour }

// burst writes n changes of 100 pods at full speed and returns the last
// version.
func burst(store *memstore.Store, n int) (last uint64) {
	for i := range n {
		last = put(store, poddata.Pod(fmt.Sprintf("burst/pod-%d", i%100)))
	}
	return last
}

func readAll(ctx context.Context, watches []*counter, rv uint64) {
	var wg sync.WaitGroup
	for _, w := range watches {
		wg.Go(func() { w.readTo(ctx, rv) })
	}
	wg.Wait()
}

// REGRESSIONS 47: a burst at full speed closes no healthy watcher.
func TestBurstClosesNobody(t *testing.T) {
	const watchers, events = 100, 20_000
	store := newStore()
	c := start(t, store, withLongHistory)
	watches := open(t, c, store, watchers)
	last := make(chan uint64, 1)
	go func() { last <- burst(store, events) }()
	readAll(testContext(t), watches, <-last)
	for i, w := range watches {
		require.NoError(t, w.err, "watcher %d, after %d events", i, w.events)
		assert.Equal(t, events, w.events, "the events of watcher %d", i)
	}
}

// Watchers that never read cost the others nothing, and resume whole when they
// read again.
func TestNeverReadingWatchersHarmNobody(t *testing.T) {
	const healthy, silent, events = 990, 10, burstEvents
	store := newStore()
	c := start(t, store, withLongHistory)
	watches := open(t, c, store, healthy)
	mute := open(t, c, store, silent)
	last := make(chan uint64, 1)
	go func() { last <- burst(store, events) }()
	rv := <-last
	readAll(testContext(t), watches, rv)
	for i, w := range watches {
		require.NoError(t, w.err, "healthy watcher %d, after %d events", i, w.events)
		assert.Equal(t, events, w.events, "the events of healthy watcher %d", i)
	}
	until(t, "the silent ones are parked", func() bool {
		parked := 0
		for _, w := range c.Status().Watchers {
			if w.Parked && w.Queued > 0 {
				parked++
			}
		}
		return parked == silent
	})
	readAll(testContext(t), mute, rv)
	for i, w := range mute {
		require.NoError(t, w.err, "silent watcher %d, after %d events", i, w.events)
		assert.Equal(t, events, w.events, "the events of silent watcher %d", i)
	}
}

// A parked watcher whose position has left the window is told so, after what
// it can still get.
func TestParkedWatcherExpires(t *testing.T) {
	store := newStore()
	c := start(t, store, func(config *cacher.Config) { config.WindowBytes = 1 })
	w := open(t, c, store, 1)[0]
	until(t, "it is live", func() bool { return !c.Status().Watchers[0].Parked })
	last := burst(store, 1000)
	until(t, "all is dispatched, and has left the window but for the last event", func() bool {
		status := c.Status()
		return status.ResourceVersion == last && status.WindowEvents == 1
	})
	for w.err == nil {
		w.readTo(testContext(t), last)
		require.NotEqual(t, last, w.last, "a watcher that did not read got every event from a window of one event")
	}
	assert.EqualError(t, w.err, fmt.Sprintf("at %d: ERROR 410 Expired", w.last))
	_, ok := <-w.ResultChan()
	assert.False(t, ok, "the watch goes on after the error")
}

// REGRESSIONS 46: Stop returns while events come at full speed, and leaves
// nothing behind (goleak looks when the tests are done).
func TestStopUnderLoad(t *testing.T) {
	for round := range 5 {
		store := newStore()
		c := start(t, store)
		watches := open(t, c, store, 50)
		_ = open(t, c, store, 5) // never read
		stop := make(chan struct{})
		var writers sync.WaitGroup
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					put(store, poddata.Pod(fmt.Sprintf("load/pod-%d", i%100)))
				}
			}
		})
		var readers sync.WaitGroup
		for _, w := range watches {
			readers.Go(func() { w.readTo(testContext(t), 1<<62) })
		}
		until(t, "events flow", func() bool { return c.Status().ResourceVersion > uint64(100*(round+1)) })
		var stops sync.WaitGroup
		for range 3 {
			stops.Go(c.Stop)
		}
		stops.Wait()
		readers.Wait() // all watches end
		close(stop)
		writers.Wait()
		assert.Zero(t, store.Watches(), "watches of the storage are left")
		assert.Error(t, c.GetList(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true}, &example.PodList{}), "a stopped cache lists")
		_, err := c.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
		assert.Error(t, err, "a stopped cache watches")
	}
}
