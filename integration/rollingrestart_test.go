// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
)

// fleet is servers behind one address: clients speak to the one that is in service.
type fleet struct {
	current atomic.Pointer[versioned.Clientset]
}

// restartedClient is a reflector of one namespace, whose lists are counted.
type restartedClient struct {
	store cache.Store
	lists atomic.Int32
}

func (f *fleet) follow(ctx context.Context, namespace string, running *sync.WaitGroup) *restartedClient {
	c := &restartedClient{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	r := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			c.lists.Add(1)
			return f.current.Load().FleetV1().Devices(namespace).List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			if opts.SendInitialEvents != nil && *opts.SendInitialEvents {
				c.lists.Add(1) // the state as a watch
			}
			return f.current.Load().FleetV1().Devices(namespace).Watch(ctx, opts)
		},
	}, &fleetv1.Device{}, c.store, cache.ReflectorOptions{})
	running.Go(func() { r.RunWithContext(ctx) })
	return c
}

// Two servers over one etcd are restarted one after the other, while one namespace is
// written to. No client lists, whether its namespace is quiet or not: each gets a
// bookmark before its server ends its watch, and resumes on the other server, which
// was started a moment ago.
func TestRollingRestart(t *testing.T) {
	_, err := apiserverProgram.Path()
	require.NoError(t, err)
	noLeaks(t)
	etcd := etcdserver.Start(t, etcdserver.Config{Sync: true})
	args := []string{"--standalone", "--etcd-servers=" + strings.Join(etcd.Endpoints(), ","), "--secure-port=0"}
	var all fleet
	first := startServer(t, t.TempDir(), args...)
	all.current.Store(clientsetFor(t, first))
	for i := range 10 {
		create(t, all.current.Load(), fmt.Sprintf("quiet-%d", i), "kept", 3)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var clients []*restartedClient
	for i := range 10 {
		clients = append(clients, all.follow(ctx, fmt.Sprintf("quiet-%d", i), &running))
	}
	clients = append(clients, all.follow(ctx, "", &running), all.follow(ctx, "busy", &running))
	var written atomic.Int32
	running.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			_, err := all.current.Load().FleetV1().Devices("busy").Create(ctx, device("busy", fmt.Sprintf("busy-%d", n), "z"), metav1.CreateOptions{})
			if err == nil {
				written.Add(1)
			}
			if errors.Is(err, context.Canceled) {
				return
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	synced := func(what string) {
		t.Helper()
		before := written.Load()
		eventually(t, what, func(context.Context) (bool, error) {
			for i, c := range clients[:10] {
				if n := len(c.store.List()); n != 3 {
					return false, fmt.Errorf("client %d has %d objects", i, n)
				}
			}
			busy := len(clients[11].store.List())
			if written.Load() < before+20 || busy < int(before)+20 || len(clients[10].store.List()) < busy {
				return false, fmt.Errorf("%d written, %d seen", written.Load(), busy)
			}
			return true, nil
		})
	}
	synced("the clients do not get their objects")

	server := first
	for round := range 3 {
		next := startServer(t, t.TempDir(), args...)
		all.current.Store(clientsetFor(t, next))
		require.Zero(t, server.interrupt(t), "%s", &server.log)
		server = next
		synced(fmt.Sprintf("after restart %d", round))
	}
	for i, c := range clients {
		require.EqualValues(t, 1, c.lists.Load(), "client %d has listed again", i)
	}
	t.Logf("%d clients, %d writes, three restarts: no list but the first", len(clients), written.Load())
}
