// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// informer is a client-go informer of all devices that counts how often it has listed.
type informer struct {
	shared cache.SharedIndexInformer
	mu     sync.Mutex
	begun  int // lists, as a watch or not
	opened int // watches
}

// follow runs so many informers until the test ends, or stop is called, and returns once
// all have the state.
func follow(t *testing.T, client *versioned.Clientset, informers int) (all []*informer, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	devices := client.FleetV1().Devices("")
	for range informers {
		i := &informer{}
		i.shared = cache.NewSharedIndexInformer(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
				i.count(true)
				return devices.List(ctx, opts)
			},
			WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
				i.count(opts.SendInitialEvents != nil && *opts.SendInitialEvents)
				w, err := devices.Watch(ctx, opts)
				if err == nil {
					i.mu.Lock()
					i.opened++
					i.mu.Unlock()
				}
				return w, err
			},
		}, &fleetv1.Device{}, 0, nil)
		running.Go(func() { i.shared.RunWithContext(ctx) })
		all = append(all, i)
	}
	for _, i := range all {
		require.True(t, cache.WaitForCacheSync(within(t).Done(), i.shared.HasSynced))
	}
	return all, stop
}

func (i *informer) count(list bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if list {
		i.begun++
	}
}

func (i *informer) lists() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.begun
}

func (i *informer) watches() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.opened
}

// have waits until all informers have what the client lists.
func have(t *testing.T, all []*informer, client *versioned.Clientset) {
	t.Helper()
	list, err := client.FleetV1().Devices("").List(within(t), metav1.ListOptions{})
	require.NoError(t, err)
	want := judge.ItemsOf(list)
	for n, i := range all {
		until(t, fmt.Sprintf("informer %d has the state", n), func() bool {
			got := map[string]judge.Item{}
			for _, object := range i.shared.GetStore().List() {
				d := object.(*fleetv1.Device)
				got[judge.KeyOf(d)] = judge.ItemOf(d)
			}
			return maps.Equal(got, want)
		})
	}
}
