// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
	"github.com/kube-watchcache/watchcache/integration/internal/proxy"
	"github.com/kube-watchcache/watchcache/integration/internal/slowdisk"
)

const (
	members = 3
	// recordInterval is how often the judge reads on in etcd's history.
	recordInterval = 300 * time.Millisecond
	// askPatience bounds one request of the judge, which is sent again.
	askPatience = 3 * time.Second
	// decision bounds the search for an order of the operations on one key.
	decision = 30 * time.Second
)

// server is one API server, with a proxy of its own to each member, and one that its
// clients come through.
type server struct {
	*apiserver.Process
	name  string
	lines []*proxy.Proxy
	front *proxy.Proxy
	// connected are the clients of the load, each with connections of its own.
	connected []*http.Client
}

// run is one run: a cluster, two servers, their clients and the judge.
type run struct {
	t       *testing.T
	seed    uint64
	random  *rand.Rand // of the faults
	began   time.Time
	cluster *etcdserver.Cluster
	servers []*server
	direct  *clientv3.Client // past all proxies
	clients *clients
	marks   []mark
	// slowSyncs is how many calls of fsync had to wait in faults that are over, and
	// unslow why none can; nil: they can.
	slowSyncs int64
	unslow    error
	// unfollow ends reading on in etcd's history.
	unfollow func()
	history  struct {
		sync.Mutex
		*judge.History
	}
}

// newRun starts everything but the clients, and prints how members run. mode is how
// they must; empty: as the environment says, or in containers where an engine answers.
func newRun(t *testing.T, seed uint64, mode etcdserver.Mode) *run {
	t.Helper()
	_, err := testserver.Path()
	require.NoError(t, err)
	r := &run{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 0)), began: time.Now()}
	r.history.History = judge.NewHistory()
	r.cluster = etcdserver.StartClusterOf(t, etcdserver.ClusterConfig{Members: members, Dir: t.TempDir(), Mode: mode, SlowDisk: true})
	fmt.Println(r.cluster)
	if _, r.unslow = r.cluster.Member(0).SlowSyncs(t.Context()); errors.Is(r.unslow, slowdisk.ErrUnavailable) {
		fmt.Printf("no disk is slow in this run: %v\n", r.unslow)
	} else {
		require.NoError(t, r.unslow)
	}
	r.direct, err = clientv3.New(clientv3.Config{
		Endpoints: r.cluster.Direct(), Logger: zap.NewNop(),
		// Connections to a member that was cut off may be dead without a sign of it.
		DialKeepAliveTime: askPatience, DialKeepAliveTimeout: askPatience,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.direct.Close() })
	for _, name := range []string{"A", "B"} {
		r.servers = append(r.servers, r.newServer(name))
	}
	r.clients = newClients(r)
	return r
}

func (r *run) newServer(name string) *server {
	s := &server{name: name}
	var addresses []string
	for _, m := range r.cluster.Members() {
		direct, err := url.Parse(m.Direct())
		require.NoError(r.t, err)
		line := listen(r.t, direct.Host)
		s.lines, addresses = append(s.lines, line), append(addresses, "http://"+line.Address())
	}
	s.Process = testserver.Start(r.t, apiserver.Ours, addresses)
	at, err := url.Parse(s.Process.Config.Host)
	require.NoError(r.t, err)
	s.front = listen(r.t, at.Host)
	return s
}

// listen starts a proxy, which ends with the test.
func listen(t *testing.T, target string) *proxy.Proxy {
	t.Helper()
	p, err := proxy.Listen(target, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// start starts the clients and the judge, which end with the test if nothing ends
// them before.
func (r *run) start() {
	r.clients.start(r.t)
	r.t.Cleanup(r.clients.stop)
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { every(ctx, recordInterval, func() { _, _ = r.record(ctx) }) })
	r.unfollow = func() {
		cancel()
		tasks.Wait()
	}
	r.t.Cleanup(r.unfollow)
}

// record reads on in etcd's history. An attempt may fail while the cluster does
// not answer; nothing is lost by that as long as nothing is compacted which was
// not read.
func (r *run) record(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	r.history.Lock()
	defer r.history.Unlock()
	return r.history.Extend(ctx, r.direct)
}

// recorded reads on in etcd's history until it has it all.
func (r *run) recorded(ctx context.Context) (upTo int64) {
	r.t.Helper()
	r.await(ctx, "etcd's history can't be read", func() (err error) {
		upTo, err = r.record(ctx)
		return err
	})
	return upTo
}

// await returns when what is awaited is there: when ask returns no error.
func (r *run) await(ctx context.Context, what string, ask func() error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(retryPause)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			require.NoError(r.t, err, what)
		}
	}
}
