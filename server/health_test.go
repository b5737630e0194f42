// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// addEtcdChecks adds checks as EtcdOptions.ApplyTo does, of which each says that
// it is the server's own.
func addEtcdChecks(config *genericapiserver.Config) {
	for _, suffix := range []string{"", "-override-0"} {
		own := func(name, group string) healthz.HealthChecker {
			return healthz.NamedGroupedCheck(name, group, func(*http.Request) error { return errors.New("own " + name) })
		}
		config.AddHealthChecks(own("etcd"+suffix, "etcd"))
		readiness := map[string]string{"": "etcd-readiness", "-override-0": "etcd-override-readiness-0"}[suffix]
		config.AddReadyzChecks(own(readiness, "etcd-readiness"))
	}
	config.AddHealthChecks(healthz.NamedCheck("etcd-of-ours", func(*http.Request) error { return nil }))
}

// usePool makes the installation's pool open fakeBackends, one for each set of
// servers.
func usePool(t *testing.T, config *genericapiserver.Config, servers ...string) map[string]*fakeBackend {
	t.Helper()
	opened := map[string]*fakeBackend{}
	var p *pool
	for _, check := range config.ReadyzChecks {
		if c, ok := check.(*etcdCheck); ok {
			p = c.pool
		}
	}
	require.NotNil(t, p)
	p.open = func(_ context.Context, config etcd3.Config) (backend, error) {
		b := &fakeBackend{config: config}
		opened[config.Endpoints[0]] = b
		return b, nil
	}
	for _, s := range servers {
		_, destroy, err := p.rawStorage(decoration.Request{Config: resourceConfig(func(c *storagebackend.Config) { c.Transport.ServerList = []string{s} }), ResourcePrefix: ""})
		require.NoError(t, err)
		t.Cleanup(destroy)
	}
	return opened
}

func withEtcdOptions(config *genericapiserver.Config) {
	options := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))
	options.StorageConfig.Transport.ServerList = []string{"http://main:2379"}
	options.EtcdServersOverrides = []string{"/events#http://events:2379"}
	config.RESTOptionsGetter = options.CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{StorageConfig: options.StorageConfig}, nil)
	addEtcdChecks(config)
}

func code(server *genericapiserver.GenericAPIServer, path string) int { return get(server, path).Code }

// REGRESSIONS 111: the server's own checks go on failing after an outage of
// etcd; readiness asks the caches' clients, server by server, and liveness does
// not ask.
func TestEtcdChecksAskTheCachesClients(t *testing.T) {
	var backends map[string]*fakeBackend
	server := newServer(t, func(config *genericapiserver.Config) {
		withEtcdOptions(config)
		require.NoError(t, Install(config))
		backends = usePool(t, config, "http://main:2379", "http://events:2379")
	})
	server.PrepareRun()
	all := []string{"/healthz/etcd", "/readyz/etcd", "/readyz/etcd-readiness",
		"/healthz/etcd-override-0", "/readyz/etcd-override-0", "/readyz/etcd-override-readiness-0"}
	expect := func(main, events int) {
		t.Helper()
		for i, path := range all {
			require.Equal(t, []int{main, events}[i/3], code(server, path), path)
		}
		require.NotContains(t, get(server, "/livez?verbose").Body.String(), "]etcd ")
		require.NotContains(t, get(server, "/livez?verbose").Body.String(), "]etcd-override")
		require.Contains(t, get(server, "/livez?verbose").Body.String(), "[+]etcd-of-ours ok")
	}
	expect(http.StatusOK, http.StatusOK)
	backends["http://main:2379"].fail(errors.New("no leader"))
	expect(http.StatusInternalServerError, http.StatusOK)
	backends["http://events:2379"].fail(errors.New("no leader"))
	expect(http.StatusInternalServerError, http.StatusInternalServerError)
	backends["http://main:2379"].fail(nil)
	expect(http.StatusOK, http.StatusInternalServerError)
	backends["http://events:2379"].fail(nil)
	expect(http.StatusOK, http.StatusOK)
}

// For servers of which no cache has a client, the server's own checks decide.
func TestEtcdChecksWithoutAClient(t *testing.T) {
	server := newServer(t, func(config *genericapiserver.Config) {
		withEtcdOptions(config)
		require.NoError(t, Install(config))
		usePool(t, config, "http://main:2379")
	})
	server.PrepareRun()
	require.Equal(t, http.StatusOK, code(server, "/readyz/etcd"))
	require.Equal(t, http.StatusInternalServerError, code(server, "/readyz/etcd-override-0"))
	for _, check := range server.HealthzChecks() {
		if check.Name() == "etcd-override-0" {
			require.EqualError(t, check.Check(nil), "own etcd-override-0")
		}
	}
}

// A server in front shows the checks of the one that it delegates to, under /livez
// as well.
func TestLivenessOfADelegationDoesNotAskEtcd(t *testing.T) {
	inner := newServer(t, func(config *genericapiserver.Config) {
		withEtcdOptions(config)
		require.NoError(t, Install(config))
		usePool(t, config, "http://main:2379", "http://events:2379")["http://main:2379"].fail(errors.New("no leader"))
	})
	outer := newServerBefore(t, inner, func(*genericapiserver.Config) {})
	outer.PrepareRun()
	require.Equal(t, http.StatusInternalServerError, code(outer, "/readyz/etcd"))
	require.Equal(t, http.StatusOK, code(outer, "/livez/etcd"))
}

// Two copies of one Config have their own checks: Install does not write to the
// slices that they share.
func TestInstallOnCopies(t *testing.T) {
	config := genericapiserver.Config{RESTOptionsGetter: &fakeGetter{}}
	config.HealthzChecks = make([]healthz.HealthChecker, 0, 16)
	config.LivezChecks = make([]healthz.HealthChecker, 0, 16)
	config.ReadyzChecks = make([]healthz.HealthChecker, 0, 16)
	addEtcdChecks(&config)
	first, second := config, config
	require.NoError(t, Install(&first))
	require.NoError(t, Install(&second))
	markerOf := func(config genericapiserver.Config) *installation {
		return config.HealthzChecks[len(config.HealthzChecks)-1].(marker).installation
	}
	require.Same(t, first.RESTOptionsGetter.(*getter).installed, markerOf(first))
	require.Same(t, second.RESTOptionsGetter.(*getter).installed, markerOf(second))
	require.NotSame(t, markerOf(first), markerOf(second))
	for i, check := range config.LivezChecks {
		require.NotNil(t, check, "liveness check %d of the original", i)
	}
	_, replaced := config.ReadyzChecks[0].(*etcdCheck)
	require.False(t, replaced)
}

// The flags for the timeouts of EtcdOptions' checks are those of the checks that
// take their place.
func TestEtcdCheckTimeouts(t *testing.T) {
	for name, test := range map[string]struct {
		health, readiness, wantHealth, wantReadiness time.Duration
	}{
		"both given": {5 * time.Second, 7 * time.Second, 5 * time.Second, 7 * time.Second},
		"none given": {0, 0, 2 * time.Second, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			config := &genericapiserver.Config{}
			options := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))
			options.StorageConfig.Transport.ServerList = []string{"http://main:2379"}
			options.StorageConfig.HealthcheckTimeout, options.StorageConfig.ReadycheckTimeout = test.health, test.readiness
			config.RESTOptionsGetter = options.CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{StorageConfig: options.StorageConfig}, nil)
			addEtcdChecks(config)
			require.NoError(t, Install(config))
			usePool(t, config, "http://main:2379")["http://main:2379"].silent.Store(true)
			for _, check := range config.ReadyzChecks {
				want := map[string]time.Duration{"etcd": test.wantHealth, "etcd-readiness": test.wantReadiness}[check.Name()]
				if want == 0 {
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					began := time.Now()
					require.ErrorIs(t, check.Check(nil), context.DeadlineExceeded, check.Name())
					require.Equal(t, want, time.Since(began), check.Name())
				})
			}
		})
	}
}
