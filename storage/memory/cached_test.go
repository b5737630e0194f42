// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/cachetest"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/internal/race"
)

// A burst of changes at full speed reaches all watchers that read, once and in order;
// those that never read cost the others nothing.
func TestBurst(t *testing.T) {
	const silent = 10
	changes, watchers := 20_000, 1_000
	if race.Enabled { // a send costs fifty times as much
		changes, watchers = 2_000, 200
	}
	s := open(t)
	// A machine that others use takes longer for the burst than events are kept.
	c := cachetest.Start(t, s, func(c *cacher.Config) { c.EventsHistoryWindow = time.Hour })
	everything := storage.ListOptions{ResourceVersion: version(t, s), Recursive: true, Predicate: storage.Everything}
	var reading sync.WaitGroup
	wrong := make(chan string, watchers)
	for i := range watchers {
		w, err := c.Watch(t.Context(), poddata.Prefix, everything)
		require.NoError(t, err)
		t.Cleanup(w.Stop)
		if i < silent {
			continue
		}
		reading.Go(func() { // ends with the burst's last event, or with the watch
			for n := range changes {
				event, ok := <-w.ResultChan()
				object := event.Object
				if shared, isShared := object.(apiruntime.CacheableObject); isShared {
					object = shared.GetObject()
				}
				pod, isPod := object.(*example.Pod)
				if !ok || !isPod || pod.Labels["v"] != strconv.Itoa(n) {
					wrong <- fmt.Sprintf("watcher %d: event %d is %v", i, n, event)
					return
				}
			}
		})
	}
	for n := range changes {
		require.NoError(t, s.Upsert(t.Context(), pod("a/"+strconv.Itoa(n%100), strconv.Itoa(n))))
	}
	reading.Wait()
	close(wrong)
	for message := range wrong {
		require.Fail(t, message)
	}
}

// Consistent reads are served from the cache.
func TestConsistentReads(t *testing.T) {
	s := &counting{Store: open(t)}
	c := cachetest.Start(t, s)
	for n := range 100 {
		require.NoError(t, s.Upsert(t.Context(), pod("a/x", strconv.Itoa(n))))
		out := &example.Pod{}
		require.NoError(t, c.Get(t.Context(), "/pods/a/x", storage.GetOptions{}, out))
		require.Equal(t, strconv.Itoa(n), out.Labels["v"])
		require.Equal(t, strconv.Itoa(n), list(t, c, storage.ListOptions{})["a/x"].Labels["v"])
	}
	require.Equal(t, 1, s.reads, "only the list at the start")
}

// counting counts the reads that reach the store.
type counting struct {
	*Store
	reads int
}

func (s *counting) Get(ctx context.Context, key string, opts storage.GetOptions, out apiruntime.Object) error {
	s.reads++
	return s.Store.Get(ctx, key, opts, out)
}

func (s *counting) GetList(ctx context.Context, key string, opts storage.ListOptions, out apiruntime.Object) error {
	s.reads++
	return s.Store.GetList(ctx, key, opts, out)
}
