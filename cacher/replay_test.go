// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// replay is the naive store: the whole state at every version, for ever.
type replay struct {
	store *memstore.Store

	mu struct {
		sync.Mutex
		states map[uint64]map[string]*example.Pod
		rv     uint64
	}
}

func newReplay() *replay {
	r := &replay{store: newStore()}
	r.mu.rv = 1
	r.mu.states = map[uint64]map[string]*example.Pod{1: {}}
	return r
}

// write does a write to the store and remembers what it has become. Nobody
// sees the one without the other.
func (r *replay) write(f func(state map[string]*example.Pod) uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := maps.Clone(r.mu.states[r.mu.rv])
	if rv := f(state); rv > 0 {
		r.mu.rv = rv
		r.mu.states[rv] = state
	}
}

func (r *replay) put(pod *example.Pod) {
	r.write(func(state map[string]*example.Pod) uint64 {
		key, _ := poddata.Key(pod)
		state[key] = pod
		return put(r.store, pod)
	})
}

func (r *replay) remove(key string) {
	r.write(func(state map[string]*example.Pod) uint64 {
		delete(state, key)
		return r.store.Remove(key)
	})
}

func (r *replay) now() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.rv
}

// list is what a LIST of everything at rv must give: the selected pods, each with its
// version.
func (r *replay) list(rv uint64, predicate storage.SelectionPredicate) []string {
	r.mu.Lock()
	state := r.mu.states[rv]
	r.mu.Unlock()
	lines := []string{}
	for _, k := range slices.Sorted(maps.Keys(state)) {
		if matches, err := predicate.Matches(state[k]); err == nil && matches {
			lines = append(lines, k+"@"+state[k].ResourceVersion)
		}
	}
	return lines
}

func linesOf(pods *example.PodList) []string {
	lines := []string{}
	for i := range pods.Items {
		key, _ := poddata.Key(&pods.Items[i])
		lines = append(lines, key+"@"+pods.Items[i].ResourceVersion)
	}
	return lines
}

// While writes go on, what is read is some version's replay, and not older than what
// had been written when the read began.
func TestReadsDuringWrites(t *testing.T) {
	names := []string{"a/one", "a/two", "a/three", "aa/one", "b/one", "b/two"}
	r := newReplay()
	c := start(t, r.store, withLabels("color"))
	ctx, cancel := context.WithCancel(testContext(t))
	var writer, readers sync.WaitGroup
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := names[i*7%len(names)]
			if i%5 == 4 {
				r.remove("/pods/" + name)
			} else {
				r.put(poddata.Pod(name, fmt.Sprintf("color=%d", i%3)))
			}
			if i%50 == 0 {
				// and let readers come
				_, _, err := listAt(ctx, c, everything(""))
				if err != nil {
					assert.Error(t, ctx.Err(), err)
				}
			}
		}
	})
	predicate := poddata.Predicate("color in (0,1)", "")
	for range 4 {
		readers.Go(func() {
			for range 100 {
				before := r.now()
				opts := everything("")
				opts.Predicate = predicate
				pods, at, err := listAt(ctx, c, opts)
				if !assert.NoError(t, err) || !assert.GreaterOrEqual(t, at, before, "the version of a read, and the one that was written before it") {
					return
				}
				got, want := linesOf(pods), r.list(at, predicate)
				if !assert.Equal(t, want, got, "at %d", at) {
					return
				}
				opts = everything(fmt.Sprint(before))
				opts.ResourceVersionMatch = metav1.ResourceVersionMatchExact
				pods, _, err = listAt(ctx, c, opts)
				if !assert.NoError(t, err) {
					return
				}
				got, want = linesOf(pods), r.list(before, storage.Everything)
				if !assert.Equal(t, want, got, "exactly at %d", before) {
					return
				}
			}
		})
	}
	readers.Wait()
	cancel()
	writer.Wait()
}

func listAt(ctx context.Context, c storage.Interface, opts storage.ListOptions) (*example.PodList, uint64, error) {
	pods := &example.PodList{}
	if err := c.GetList(ctx, "/pods/", opts, pods); err != nil {
		return nil, 0, err
	}
	at, err := strconv.ParseUint(pods.ResourceVersion, 10, 64)
	return pods, at, err
}
