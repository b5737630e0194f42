// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tuning

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/cachetest"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

const (
	// warmUp is longer than any window, and samplesEvery and samples say when
	// clients come back after it.
	warmUp       = 11 * time.Minute
	samplesEvery = 7 * time.Second
	samples      = 30
	// quietClients watch objects of which there are none, and know of a new
	// version by bookmarks alone. They come one after the other, in the time between
	// two bookmarks.
	quietClients = 20
	opensEvery   = 3 * time.Second
	// objects are changed in turn; each is of objectBytes.
	objects     = 100
	objectBytes = 10 << 10
)

// aways are for how long clients are away.
func aways() (out []time.Duration) {
	for away := time.Duration(0); away <= 5*time.Minute; away += 15 * time.Second {
		out = append(out, away)
	}
	return out
}

// load is how many objects change in a second, by the time since the start.
type load func(since time.Duration) int

// steady is ten changes in a second.
func steady(time.Duration) int { return 10 }

// bursty is ten changes in a second, and two hundred for twenty seconds of each
// hundred.
func bursty(since time.Duration) int {
	if since%(100*time.Second) >= 80*time.Second {
		return 200
	}
	return 10
}

// told is what a client had been told at a time: everything up to a version.
type told struct {
	at time.Duration
	rv string
}

// lastBefore returns the last version that was told at a time or before.
func lastBefore(all []told, at time.Duration) string {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].at <= at {
			return all[i].rv
		}
	}
	return ""
}

// away is one run: a cache under a load, and clients that were away.
type away struct {
	store *memstore.Store
	cache *cacher.Cacher
	began time.Time
	next  int // the object to change
	// clients are, for each client, what it was told and when.
	clients [][]told
}

// shareOfExpired returns, for each of aways, the percentage of clients that are told
// 410 when they come back: clients that get each event, or quiet ones.
func shareOfExpired(t *testing.T, quiet bool, load load, change func(*cacher.Config)) (shares []float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := cachetest.NewStore()
		c := cachetest.Start(t, store, func(c *cacher.Config) {
			c.ConsistencyCheckInterval = -1
			change(c)
		})
		<-time.After(time.Second / 2) // nothing happens at the same time as a tick of the cache
		r := &away{store: store, cache: c, began: time.Now(), clients: make([][]told, 1)}
		if quiet {
			r.clients = make([][]told, quietClients)
		}
		expired, tried := make([]int, len(aways())), 0
		for since := time.Duration(0); since <= warmUp+samples*samplesEvery; since += time.Second {
			if i := int(since / opensEvery); quiet && since%opensEvery == 0 && i < quietClients {
				r.open(t, i)
			}
			r.second(load(since))
			if since > warmUp && since%samplesEvery == 0 {
				tried += len(r.clients)
				for i, away := range aways() {
					expired[i] += r.expired(t, away)
				}
			}
		}
		for _, n := range expired {
			shares = append(shares, 100*float64(n)/float64(tried))
		}
	})
	return shares
}

// second changes so many objects, and lets a second pass.
func (r *away) second(changes int) {
	var rv uint64
	for range changes {
		pod := poddata.Pod(fmt.Sprintf("a/pod-%03d", r.next%objects))
		pod.Annotations = map[string]string{"padding": padding}
		rv = cachetest.Put(r.store, pod)
		r.next++
	}
	if len(r.clients) == 1 { // it gets each event
		r.clients[0] = append(r.clients[0], told{time.Since(r.began), fmt.Sprint(rv)})
	}
	<-time.After(time.Second)
}

// padding is shared by all objects, and counts for each of them.
var padding = strings.Repeat("x", objectBytes)

// open opens the watch of a quiet client, which notes its bookmarks. The goroutine
// ends with the watch, and that with the test.
func (r *away) open(t *testing.T, client int) {
	t.Helper()
	w, err := r.watch(t.Context(), fmt.Sprint(r.cache.Status().ResourceVersion))
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	go func() {
		for event := range w.ResultChan() {
			if event.Type == watch.Bookmark {
				rv := event.Object.(*example.Pod).ResourceVersion
				r.clients[client] = append(r.clients[client], told{time.Since(r.began), rv})
			}
		}
	}()
}

func (r *away) watch(ctx context.Context, rv string) (watch.Interface, error) {
	predicate := poddata.Predicate("", "metadata.name=none")
	predicate.AllowWatchBookmarks = true
	return r.cache.Watch(ctx, poddata.Prefix, storage.ListOptions{ResourceVersion: rv, Recursive: true, Predicate: predicate})
}

// expired returns how many of the clients that were away for so long are told 410.
func (r *away) expired(t *testing.T, away time.Duration) (n int) {
	t.Helper()
	synctest.Wait()
	now := time.Since(r.began)
	for _, client := range r.clients {
		rv := lastBefore(client, now-away)
		require.NotEmpty(t, rv, "what a client knew %v ago", away)
		w, err := r.watch(t.Context(), rv)
		if err == nil {
			synctest.Wait()
			select {
			case event := <-w.ResultChan():
				require.Equal(t, watch.Error, event.Type)
				err = apierrors.FromObject(event.Object)
			default:
			}
			w.Stop()
		}
		if err != nil {
			require.True(t, apierrors.IsResourceExpired(err), "%v", err)
			n++
		}
	}
	return n
}

// windowTables are the runs about the window of events: all, or the quickest of each table.
func windowTables(t *testing.T, some bool) []table {
	t.Helper()
	times := newTable("Quiet clients that are told 410", "seconds away", aways())
	sizes := newTable("Clients that are told 410 under bursts of changes", "seconds away", aways())
	windows := []time.Duration{30 * time.Second, cacher.DefaultEventsHistoryWindow, 150 * time.Second, 300 * time.Second}
	bytes := []int64{4, 8, 16, 32, 64}
	if some {
		windows, bytes = windows[1:2], bytes[1:2]
	}
	for _, window := range windows {
		times.add(fmt.Sprintf("%v s", window.Seconds()), shareOfExpired(t, true, steady, func(c *cacher.Config) {
			c.EventsHistoryWindow, c.WindowBytes = window, 1<<30
		}))
	}
	for _, mib := range bytes {
		sizes.add(fmt.Sprintf("%d MiB", mib), shareOfExpired(t, false, bursty, func(c *cacher.Config) {
			c.EventsHistoryWindow, c.WindowBytes = 150*time.Second, mib<<20
		}))
	}
	return []table{times, sizes}
}
