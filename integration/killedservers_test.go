// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
)

// fleet is one address: its clients speak to the server that is in service.
type fleet struct {
	current atomic.Pointer[versioned.Clientset]
}

// restartedClient is a reflector of one namespace, whose lists are counted.
type restartedClient struct {
	store cache.Store
	lists atomic.Int32
	// watches is set when a watch is opened.
	watches atomic.Bool
}

// errNoServer is what clients get while there is no server in service.
var errNoServer = fmt.Errorf("no server: %w", syscall.ECONNREFUSED)

func (f *fleet) follow(ctx context.Context, namespace string, running *sync.WaitGroup) *restartedClient {
	c := &restartedClient{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	r := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			current := f.current.Load()
			if current == nil {
				return nil, errNoServer
			}
			c.lists.Add(1)
			return current.FleetV1().Devices(namespace).List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			current := f.current.Load()
			if current == nil {
				return nil, errNoServer
			}
			if opts.SendInitialEvents != nil && *opts.SendInitialEvents {
				c.lists.Add(1) // the state as a watch
			}
			w, err := current.FleetV1().Devices(namespace).Watch(ctx, opts)
			if err == nil {
				c.watches.Store(true)
			}
			return w, err
		},
	}, &fleetv1.Device{}, c.store, cache.ReflectorOptions{})
	running.Go(func() { r.RunWithContext(ctx) })
	return c
}

// Three servers over one etcd, each with clients of its own, are killed and started
// again, one after the other, under writes. Nobody sends those clients a last
// bookmark, and those of quiet namespaces are at versions from long before the start
// of the server that they resume on. None lists: the server's cache goes back to what
// etcd has. Once etcd has compacted it, a client is told so.
func TestKilledServers(t *testing.T) {
	_, err := apiserverProgram.Path()
	require.NoError(t, err)
	noLeaks(t)
	etcd := etcdserver.Start(t, etcdserver.Config{Sync: true})
	const perServer = 8
	args := []string{"--standalone", "--etcd-servers=" + strings.Join(etcd.Endpoints(), ","), "--secure-port=0", "-v=2"}
	var servers [3]*apiserver
	var all [3]fleet
	begin := func(i int) {
		servers[i] = startServer(t, t.TempDir(), args...)
		all[i].current.Store(clientsetFor(t, servers[i]))
	}
	for i := range all {
		begin(i)
	}
	first := create(t, all[0].current.Load(), "quiet", "kept", 30)[0]

	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var clients [3][]*restartedClient
	for i := range all {
		for n := range perServer {
			clients[i] = append(clients[i], all[i].follow(ctx, []string{"quiet", "busy"}[n%2], &running))
		}
	}
	var written, at atomic.Int32 // at: the server that is written through
	running.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			if current := all[at.Load()].current.Load(); current != nil {
				if _, err := current.FleetV1().Devices("busy").Create(ctx, device("busy", fmt.Sprintf("busy-%d", n), "z"), metav1.CreateOptions{}); err == nil {
					written.Add(1)
				}
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	// client-go lists when a watch ends in its first second and has brought nothing, whatever
	// the server has. To client-go a watch that goes on after its initial events begins
	// once they are in the store, which may be long after it was opened: all have begun
	// before synced returns.
	synced := func(what string) {
		t.Helper()
		before := int(written.Load())
		eventually(t, what, func(context.Context) (bool, error) {
			if int(written.Load()) < before+5 {
				return false, fmt.Errorf("%d written", written.Load())
			}
			for i := range clients {
				for n, c := range clients[i] {
					if have := len(c.store.List()); (n%2 == 0 && have != 30) || (n%2 == 1 && have < before+5) {
						return false, fmt.Errorf("client %d of server %d has %d objects", n, i, have)
					}
					if !c.watches.Load() {
						return false, fmt.Errorf("client %d of server %d does not watch", n, i)
					}
				}
			}
			return true, nil
		})
	}
	synced("the clients do not get their objects")

	for i := range servers {
		begun := time.Now()
		eventually(t, "a second does not pass", func(context.Context) (bool, error) {
			return time.Since(begun) > 1200*time.Millisecond, nil
		})
		at.Store(int32((i + 1) % 3))
		all[i].current.Store(nil)
		for _, c := range clients[i] {
			c.watches.Store(false)
		}
		servers[i].kill()
		after := written.Load() + 20
		eventually(t, "nothing is written", func(context.Context) (bool, error) { return written.Load() > after, nil })
		began := time.Now()
		begin(i)
		started := time.Since(began)
		synced(fmt.Sprintf("after server %d was killed", i))
		t.Logf("server %d was killed: %v until another one served, %v until its %d clients watched",
			i, started.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), perServer)
	}
	for i := range clients {
		for n, c := range clients[i] {
			require.EqualValues(t, 1, c.lists.Load(), "client %d of server %d has listed again; its server's log:\n%s", n, i, &servers[i].log)
		}
	}

	// One server is left, and etcd is compacted.
	client, err := clientv3.New(clientv3.Config{Endpoints: etcd.Endpoints(), DialTimeout: patience})
	require.NoError(t, err)
	defer client.Close()
	late := create(t, all[0].current.Load(), "quiet", "last", 2)
	rv, err := strconv.ParseInt(late[0].ResourceVersion, 10, 64)
	require.NoError(t, err)
	_, err = client.Compact(within(t), rv)
	require.NoError(t, err)
	for i := range servers {
		all[i].current.Store(nil)
		servers[i].kill()
	}
	cancel()
	running.Wait()
	only := startServer(t, t.TempDir(), args...)
	const quiet = "/apis/fleet.example.com/v1/namespaces/quiet/devices?watch=true&resourceVersion="
	resumed := openWatch(t, only, quiet+late[0].ResourceVersion).next(t)
	require.Equal(t, string(watch.Added), resumed.Type)
	require.Equal(t, late[1].Name, metaOf(t, resumed).Name)
	refused := openWatch(t, only, quiet+first.ResourceVersion).next(t)
	require.Equal(t, string(watch.Error), refused.Type)
	require.Contains(t, string(refused.Object.Raw), "Expired")
}
