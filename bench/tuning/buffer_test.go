// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tuning

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/cachetest"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

const (
	// In a burst an event comes each burstPause. A client takes one each fastest to
	// slowest, the clients at even distances.
	burstPause       = time.Millisecond
	fastest, slowest = 500 * time.Microsecond, 4 * time.Millisecond
	burstClients     = 200
	// betweenBursts is enough for all clients to catch up, and less than the window
	// of events.
	betweenBursts = time.Minute
	burstsOfRun   = 3
)

// buffers are the sizes of WatchBuffer.
var buffers = []int{1, 4, 16, 64, 256, 1024}

// bursts sends bursts of so many events to clients whose channels hold buffer, and returns
// the parkings of a burst for each hundred clients.
func bursts(t *testing.T, buffer, events int) (parkings float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := cachetest.NewStore()
		c := cachetest.Start(t, store, func(c *cacher.Config) {
			c.ConsistencyCheckInterval, c.WatchBuffer = -1, buffer
		})
		write := func() { cachetest.Put(store, poddata.Pod("a/pod")) }
		write()
		for i := range burstClients {
			joins(t, c, fastest+time.Duration(i)*(slowest-fastest)/(burstClients-1))
		}
		<-time.After(betweenBursts)
		parked := c.Status().Totals.Parked
		for range burstsOfRun {
			for range events {
				write()
				<-time.After(burstPause)
			}
			<-time.After(betweenBursts)
		}
		parkings = 100 * float64(c.Status().Totals.Parked-parked) / burstClients / burstsOfRun
		require.Zero(t, c.Status().Totals.Expired, "every client catches up")
	})
	return parkings
}

// joins opens the watch of a client that takes an event each pause. Its goroutine
// ends with the watch, and that with the test.
func joins(t *testing.T, c *cacher.Cacher, pause time.Duration) {
	t.Helper()
	w, err := c.Watch(t.Context(), poddata.Prefix, storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything})
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	go func() {
		for event := range w.ResultChan() {
			if event.Type != watch.Bookmark {
				<-time.After(pause)
			}
		}
	}()
}

// burstEvents are the sizes of bursts.
var burstEvents = []int{20, 100, 500}

// parkingsTable is the runs about WatchBuffer and parking.
func parkingsTable(t *testing.T, some bool) table {
	t.Helper()
	out := newTable("Parkings in a burst for each 100 clients", "WatchBuffer", buffers)
	sizes := burstEvents
	if some {
		sizes = sizes[:1]
	}
	for _, events := range sizes {
		var parkings []float64
		for _, buffer := range buffers {
			parkings = append(parkings, bursts(t, buffer, events))
		}
		out.add(fmt.Sprintf("%d events", events), parkings)
	}
	return out
}
