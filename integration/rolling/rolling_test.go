// SPDX-License-Identifier: Apache-2.0

package rolling

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// pass replaces all servers, one after the other.
type pass struct {
	to   version
	kill bool
}

func (p pass) String() string {
	if p.kill {
		return "killed, then " + p.to.name
	}
	return "ended, then " + p.to.name
}

// A fleet on the shipped cacher gets this cache and goes back, gracefully and by kill, and is
// restarted on this cache in both ways.
func TestUpgradeAndBack(t *testing.T) {
	ours := version{"ours", current, nil}
	shipped := version{"shipped", current, []string{"--watch-cache-implementation=shipped"}}
	roll(t, ours, shipped, []pass{{ours, false}, {ours, true}, {ours, false}, {shipped, false}, {ours, true}, {shipped, true}})
}

// The same between this version and an earlier one, both on this cache.
func TestBetweenVersions(t *testing.T) {
	if *earlier == "" {
		t.Skip("no earlier version is named: make e2e SUITE=rolling RUN=TestBetweenVersions ARGS=\"-args -earlier COMMIT\"")
	}
	ours, before := version{"ours", current, nil}, version{"earlier", former, nil}
	roll(t, ours, before, []pass{{ours, false}, {before, false}, {ours, true}, {before, true}})
}

// roll begins with a fleet of one version and makes the passes. Nobody may list again where
// all servers that a client can move to, the new one among them, have ours.
func roll(t *testing.T, ours, first version, passes []pass) {
	for _, v := range []version{ours, first} {
		_, err := v.program.Path() // compiled before any deadline begins
		require.NoError(t, err)
	}
	noLeaks(t)
	etcd := etcdserver.Start(t, etcdserver.Config{Sync: true})
	direct, err := clientv3.New(clientv3.Config{Endpoints: etcd.Endpoints(), DialTimeout: patience})
	require.NoError(t, err)
	defer func() { require.NoError(t, direct.Close()) }()
	f := &fleet{etcd: etcd.Endpoints()}
	f.mu.watches = map[*watched]time.Time{}
	for i := range f.mu.servers {
		f.put(t, i, first)
	}
	client := f.client(t)
	for n := range names {
		_, err := client.FleetV1().Devices(quiet).Create(t.Context(), device(quiet, n, 0), metav1.CreateOptions{})
		require.NoError(t, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var following, writing sync.WaitGroup
	defer following.Wait()
	defer writing.Wait()
	defer cancel()
	var all []*informer
	for n := range *informers {
		all = append(all, f.follow(ctx, client, n, &following))
	}
	written, stop := &atomic.Int64{}, make(chan struct{})
	for n := range 2 {
		writing.Go(func() { write(ctx, stop, client, n, written) })
	}
	f.settle(t, all, written)
	for _, p := range passes {
		for at := range f.mu.servers {
			f.replace(t, ours, p, at, all, written)
		}
	}
	close(stop)
	writing.Wait()

	h := judge.NewHistory()
	_, err = h.Extend(t.Context(), direct)
	require.NoError(t, err)
	bounded, done := context.WithTimeout(t.Context(), patience)
	defer done()
	found := judge.Await(bounded, 100*time.Millisecond, func() (found judge.Violations) {
		for _, i := range all {
			found = append(found, i.judged(h)...)
		}
		return found
	})
	require.Empty(t, found)
	watches, events := 0, 0
	for _, i := range all {
		i.mu.Lock()
		watches += len(i.mu.streams)
		for _, s := range i.mu.streams {
			events += len(s.Events)
		}
		i.mu.Unlock()
	}
	t.Logf("%d informers, %d changes, %d watches with %d events: none is missing, none came twice", len(all), h.Changes(), watches, events)
}

// replace replaces a server and waits until all clients watch again.
func (f *fleet) replace(t *testing.T, ours version, p pass, at int, all []*informer, written *atomic.Int64) {
	t.Helper()
	before := make([]int, len(all))
	for n, i := range all {
		before[n] = i.lists()
	}
	f.mu.Lock()
	s := f.mu.servers[at]
	f.mu.Unlock()
	_, moved := f.watching(0, s)
	kept := p.to.name == ours.name && f.are(ours, at)
	wrote, began := written.Load(), time.Now()
	f.end(t, at, p.kill)
	f.put(t, at, p.to)
	f.settle(t, all, written)
	again := 0
	for n, i := range all {
		if i.lists() > before[n] {
			again++
		}
	}
	t.Logf("server %d, %s, was %s: %d watches moved, %d of %d informers listed again; %d writes in %v",
		at, s.version.name, p, moved, again, len(all), written.Load()-wrote, time.Since(began).Round(time.Millisecond))
	if kept {
		require.Zero(t, again, "informers listed again, though each server that they could move to had this cache")
	}
}

// settle waits until writes go on and every informer has watched for a while: client-go lists
// again when a watch ends in its first second and has brought nothing.
func (f *fleet) settle(t *testing.T, all []*informer, written *atomic.Int64) {
	t.Helper()
	before := written.Load()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		old, _ := f.watching(1200*time.Millisecond, nil)
		last = fmt.Errorf("%d of %d informers watch, %d writes", old, len(all), written.Load()-before)
		return old == len(all) && written.Load() > before+10, nil
	})
	require.NoError(t, err, "%v", last)
}

// write changes objects until stop, or until ctx ends. Etcd's history has the effect of a
// write that was not answered.
func write(ctx context.Context, stop <-chan struct{}, client *versioned.Clientset, seed int, written *atomic.Int64) {
	d := rand.New(rand.NewPCG(uint64(seed), 0))
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		bounded, cancel := context.WithTimeout(ctx, patience/10)
		made := device(namespace(d.IntN(namespaces)), d.IntN(names), 1+2*n+seed)
		devices := client.FleetV1().Devices(made.Namespace)
		var err error
		switch d.IntN(8) {
		case 0:
			err = devices.Delete(bounded, made.Name, metav1.DeleteOptions{})
		case 1, 2, 3:
			_, err = devices.Create(bounded, made, metav1.CreateOptions{})
		default:
			change := fmt.Sprintf(`{"metadata":{"labels":{"flip":%q}},"spec":{"model":%q}}`, made.Labels["flip"], made.Spec.Model)
			_, err = devices.Patch(bounded, made.Name, types.MergePatchType, []byte(change), metav1.PatchOptions{})
		}
		cancel()
		if err == nil {
			written.Add(1)
		}
	}
}

// device returns one whose content is that of the n-th write.
func device(namespace string, name, n int) *fleetv1.Device {
	lane := strconv.Itoa(name)
	return &fleetv1.Device{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "device-" + lane,
			Labels: map[string]string{"lane": lane, "flip": []string{"on", "off"}[n%3%2]}},
		Spec: fleetv1.DeviceSpec{Zone: "zone-" + lane, Owner: "field-ops", Model: "model " + strconv.Itoa(n)},
	}
}
