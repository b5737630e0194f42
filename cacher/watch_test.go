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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// REGRESSIONS 4 and 5: events that come while initial events are sent follow
// them, once each, and none goes backwards.
func TestEventsDuringInitialEvents(t *testing.T) {
	const pods, watchers = 300, 20
	store := newStore()
	for i := range pods {
		put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i)))
	}
	c := start(t, store)
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i%pods)))
			}
		}
	})
	var readers sync.WaitGroup
	for range watchers {
		readers.Go(func() {
			w, err := c.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
			if !assert.NoError(t, err) {
				return
			}
			defer w.Stop()
			highest := uint64(0)
			for range pods { // initial events, in the order of keys
				r := &counter{Interface: w}
				r.take(<-w.ResultChan(), true)
				highest = max(highest, r.last)
				if !assert.NoError(t, r.err) {
					return
				}
			}
			// From the version of the snapshot on without a gap: the first
			// event that follows may be any above it, so the highest initial
			// one is the least it can be.
			r := &counter{Interface: w}
			for range 500 {
				r.take(<-w.ResultChan(), true)
				if !assert.NoError(t, r.err, "after initial events up to %d", highest) || !assert.Greater(t, r.last, highest, "the first event after the initial events") {
					return
				}
			}
		})
	}
	readers.Wait()
	close(stop)
	writer.Wait()
}

// REGRESSIONS 24: what one watcher does to its object reaches no other.
func TestMutationsDoNotLeak(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "x=y"))
	c := start(t, store)
	vandal, victim := watchPods(t, c, "/pods/", "0"), watchPods(t, c, "/pods/", "0")
	for range 2 {
		event := <-vandal.ResultChan()
		object := event.Object.(runtime.CacheableObject).GetObject().(*example.Pod)
		object.Labels["x"] = "ruined"
		event.Object.GetObjectKind().SetGroupVersionKind(example.SchemeGroupVersion.WithKind("Ruin"))
		metaOf(t, event.Object).SetName("ruined")
		metaOf(t, event.Object).GetLabels()["x"] = "ruined"

		got := <-victim.ResultChan()
		pod := got.Object.(runtime.CacheableObject).GetObject().(*example.Pod)
		assert.Equal(t, "one", pod.Name, "the name that the victim got")
		assert.Equal(t, "y", pod.Labels["x"], "the label that the victim got")
		assert.Empty(t, pod.Kind, "the kind that the victim got")
		put(store, poddata.Pod("a/one", "x=y"))
	}
	_, pods := list(t, c, "/pods/", "0")
	assert.Equal(t, "y", pods.Items[0].Labels["x"], "the cache's own object was changed: %v", pods.Items[0])
}

func TestWatchBadInput(t *testing.T) {
	c := start(t, newStore())
	for _, test := range []struct{ key, rv string }{
		{"/pods/../x", "0"}, {"/other/", "0"}, {"", "0"}, {"/pods/", "no-number"}, {"/pods/", "-1"},
	} {
		w, err := c.Watch(context.Background(), test.key, storage.ListOptions{ResourceVersion: test.rv, Predicate: storage.Everything, Recursive: true})
		if !assert.Error(t, err, "key %q at %q", test.key, test.rv) {
			w.Stop()
		}
	}
}

// Regression 141: the client of a watch whose time is over before it begins learns why
// nothing comes.
func TestWatchWhoseTimeIsOver(t *testing.T) {
	c := start(t, newStore(poddata.Pod("a/one")))
	for _, rv := range []string{"", "0", "2"} {
		ctx, cancel := context.WithTimeout(t.Context(), -time.Second)
		_, err := c.Watch(ctx, "/pods/", everything(rv))
		cancel()
		require.Error(t, err, rv)
		assert.True(t, apierrors.IsTimeout(err), "at %q: got %v", rv, err)
		assert.ErrorContains(t, err, "timeoutSeconds")
	}
}
