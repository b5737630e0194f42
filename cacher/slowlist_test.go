// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// slowStorage is a storage that takes longer to decode its state than its
// compaction interval: by the time that the state is there, its version is
// compacted. While it streams the state it notices itself.
type slowStorage struct {
	*memstore.Store
	streams bool // it manages to stream the state, and not what comes after
	fills   atomic.Int32
}

func (s *slowStorage) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	err := s.Store.GetList(ctx, key, opts, into)
	s.decode()
	return err
}

func (s *slowStorage) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	initial := opts.SendInitialEvents != nil
	w, err := s.Store.Watch(ctx, key, opts)
	if err != nil || !initial {
		return w, err
	}
	decoded := false
	return watch.Filter(w, func(event watch.Event) (watch.Event, bool) {
		end := event.Type == watch.Bookmark
		switch {
		case !decoded && (!s.streams || end):
			decoded = true
			s.decode()
			if end {
				return event, true
			}
		case !decoded:
			return event, true
		}
		status := apierrors.NewResourceExpired("compacted").Status()
		return watch.Event{Type: watch.Error, Object: &status}, true
	}), nil
}

// decode takes its time, in which the resource changes and is compacted.
func (s *slowStorage) decode() {
	s.fills.Add(1)
	put(s.Store, poddata.Pod("a/changing"))
	rv := s.Touch()
	<-time.After(10 * time.Second) // watches that are open have come so far
	s.Compact(rv)
}

// REGRESSIONS 56: to decode the state takes longer than the storage's
// compaction interval. The cache becomes ready all the same, follows the
// storage from there on, and has filled itself a few times at most.
func TestStateThatTakesLongerThanACompaction(t *testing.T) {
	for name, streams := range map[string]bool{"the stream expires": false, "what comes after the stream expires": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &slowStorage{Store: newStore(poddata.Pod("a/one")), streams: streams}
				config := podConfig(store)
				config.ConsistencyCheckInterval = -1
				c, err := cacher.New(config)
				require.NoError(t, err)
				defer c.Stop()
				elapse(2 * time.Minute)
				require.True(t, c.Ready(), "the cache is not ready")
				n := store.fills.Load()
				assert.LessOrEqual(t, n, int32(4), "the cache was filled %d times", n)
				before := store.fills.Load()
				w := watchPods(t, c, "/pods/", "")
				w.next()
				w.next()
				for range 10 {
					rv := put(store.Store, poddata.Pod("a/after"))
					event := w.next()
					assert.Equal(t, fmt.Sprint(rv), event[len(event)-len(fmt.Sprint(rv)):], "got %q, want version %d", event, rv)
					elapse(time.Minute)
				}
				n = store.fills.Load() - before
				assert.Zero(t, n, "the cache was filled %d times more", n)
			})
		})
	}
}
