// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
)

// requests is what became of the requests of one kind.
type requests struct {
	mu     sync.Mutex
	took   []time.Duration
	failed []error
}

func (r *requests) timed(request func() error) error {
	began := time.Now()
	err := request()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = append(r.took, time.Since(began))
	if err != nil {
		r.failed = append(r.failed, err)
	}
	return err
}

// String expects that no request is under way.
func (r *requests) String() string {
	slices.Sort(r.took)
	n := len(r.took)
	if n == 0 {
		return "none"
	}
	slow := n - 1
	for slow > 0 && r.took[slow-1] > timely {
		slow--
	}
	return fmt.Sprintf("%d, failed %d, p50 %v, p99 %v, slowest %v", n, len(r.failed), r.took[n/2], r.took[n*99/100], r.took[slow:])
}

// replacing is the load while members are replaced.
type replacing struct {
	client               *versioned.Clientset
	creates, gets, lists requests
	n                    atomic.Int64
}

// use creates a device, gets it, lists all and deletes it.
func (r *replacing) use(ctx context.Context) {
	devices, name := r.client.FleetV1().Devices("team"), fmt.Sprintf("device-%d", r.n.Add(1))
	device := &fleetv1.Device{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleetv1.DeviceSpec{Zone: "zone", Owner: "team", Model: "model"}}
	if r.creates.timed(func() error { _, err := devices.Create(ctx, device, metav1.CreateOptions{}); return err }) != nil {
		return
	}
	_ = r.gets.timed(func() error { _, err := devices.Get(ctx, name, metav1.GetOptions{}); return err })
	_ = r.lists.timed(func() error { _, err := devices.List(ctx, metav1.ListOptions{}); return err })
	_ = devices.Delete(ctx, name, metav1.DeleteOptions{}) // what a create leaves after a timeout stays, too
}

// TestMembersAreReplaced stops each member in turn under load, and starts it again, once,
// and five times with -shipped. All reads are answered. Writes fail only where etcd says
// so itself: it loses what a leader has not passed on, and says so after 7 s.
func TestMembersAreReplaced(t *testing.T) {
	noLeaks(t)
	_, err := testserver.Path()
	require.NoError(t, err)
	caches, rounds := []string{apiserver.Ours}, 1
	if *both {
		caches, rounds = append(caches, apiserver.Shipped), 5
	}
	for _, cache := range caches {
		t.Run(cache, func(t *testing.T) {
			cluster := etcdserver.StartCluster(t, 3, t.TempDir())
			ctx, cancel := context.WithTimeout(t.Context(), 15*patience)
			defer cancel()
			r := &replacing{client: testserver.Start(t, cache, cluster.Endpoints()).Devices(t)}
			loading, stop := context.WithCancel(ctx)
			var load sync.WaitGroup
			for range lanes {
				load.Go(func() { every(loading, probeInterval, func() { r.use(ctx) }) })
			}
			for range rounds {
				for _, m := range cluster.Members() {
					require.NoError(t, m.Stop(ctx))
					hold(tail)
					require.NoError(t, m.Start(ctx))
					require.NoError(t, m.Ready(ctx))
					hold(tail)
				}
			}
			stop()
			load.Wait()
			fmt.Printf("members replaced, %s: creates: %v; GETs: %v; LISTs: %v\n", cache, &r.creates, &r.gets, &r.lists)
			if cache == apiserver.Ours {
				assert.Empty(t, r.gets.failed)
				assert.Empty(t, r.lists.failed)
				for _, err := range r.creates.failed {
					assert.True(t, strings.HasPrefix(err.Error(), "etcdserver: request timed out"), "%v", err)
				}
			}
		})
	}
}
