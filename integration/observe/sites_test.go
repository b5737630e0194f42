// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/proxy"
	"github.com/kube-watchcache/watchcache/metrics"
)

// site is where a scenario takes place: an example server as a process, which speaks
// through a proxy of its own to an etcd that is another process.
type site struct {
	scenario
	etcd       *etcdserver.Server
	proxy      *proxy.Proxy
	client     *clientv3.Client // of etcd itself
	server     *Server
	target     Target
	prometheus *Prometheus
	broken     chan struct{} // closed when the fault has come to its end
}

// openSites starts the servers of all scenarios. They end with the test.
func openSites(t *testing.T, ctx context.Context, all []scenario) []*site {
	t.Helper()
	shared := startEtcd(t)
	sites := make([]*site, len(all))
	errs := make([]error, len(all))
	var starts sync.WaitGroup
	for i, scenario := range all {
		s := &site{scenario: scenario, etcd: shared, broken: make(chan struct{})}
		if s.ownEtcd {
			s.etcd = startEtcd(t)
		}
		s.open(t)
		dir := filepath.Join(t.TempDir(), s.name)
		starts.Go(func() { errs[i] = s.start(ctx, dir) })
		sites[i] = s
	}
	starts.Wait()
	for _, s := range sites {
		if s.server != nil {
			t.Cleanup(func() { require.NoError(t, within(s.server.Stop), s.name) })
		}
	}
	require.NoError(t, errors.Join(errs...))
	return sites
}

// startEtcd starts an etcd that can be paused.
func startEtcd(t *testing.T) *etcdserver.Server {
	return etcdserver.Start(t, etcdserver.Config{Mode: etcdserver.Process})
}

// open opens the way to etcd, and one beside it.
func (s *site) open(t *testing.T) {
	t.Helper()
	var err error
	s.proxy, err = proxy.Listen(strings.TrimPrefix(s.etcd.Endpoints()[0], "http://"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.proxy.Close()) })
	s.client, err = clientv3.New(clientv3.Config{Endpoints: s.etcd.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.client.Close()) })
}

// start starts the server.
func (s *site) start(ctx context.Context, dir string) (err error) {
	kind := "plain"
	if s.faulty {
		kind = faultyServer
	}
	flags := append([]string{"--etcd-servers=http://" + s.proxy.Address(), "--etcd-prefix=/" + s.name}, s.flags...)
	file := dir + ".metrics"
	s.server, err = StartServer(ctx, s.name, command(), []string{serverVariable + "=" + kind, metricsVariable + "=" + file}, dir, flags...)
	if err != nil {
		return err
	}
	address, err := os.ReadFile(file)
	s.target = Target{Instance: s.name, Address: string(address)}
	return err
}

// key is the key in etcd of a device that is not there.
func (s *site) key(ctx context.Context, device string) (string, error) {
	found, err := s.client.Get(ctx, "/"+s.name+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	if err != nil {
		return "", err
	}
	if len(found.Kvs) == 0 {
		return "", fmt.Errorf("there is no device of %s in etcd", s.name)
	}
	return path.Join(path.Dir(string(found.Kvs[0].Key)), device), nil
}

// series selects the series of a metric of the site's server.
func (s *site) series(metric metrics.Name, matchers ...string) string {
	matchers = append(matchers, fmt.Sprintf("instance=%q", s.name))
	return fmt.Sprintf("%s{%s}", metric, strings.Join(matchers, ","))
}

// breaks makes the fault.
func (s *site) breaks(ctx context.Context) error {
	defer close(s.broken)
	return s.fault(ctx, s)
}

// repeat calls do again and again until Prometheus has a sample for the expression,
// or ctx ends.
func (s *site) repeat(ctx context.Context, do func(context.Context) error, until string) error {
	for ctx.Err() == nil {
		found, err := s.prometheus.Query(ctx, until)
		if err != nil || len(found) > 0 {
			return ignoreEnd(ctx, err)
		}
		if err := do(ctx); err != nil {
			return ignoreEnd(ctx, fmt.Errorf("before %s: %w", until, err))
		}
	}
	return nil
}
