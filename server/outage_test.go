// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/apis/example"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/kube-watchcache/watchcache/cacher"
)

// REGRESSIONS 111: etcd is stopped and started. Liveness never asks for it, and
// readiness is back when reads are: one check after a consistent read was
// answered at the latest.
func TestHealthDuringAnOutage(t *testing.T) {
	config, stopEtcd, startEtcd := restartable(t)
	stop := make(chan struct{})
	defer close(stop)
	var cached storage.Interface
	server := newServer(t, func(c *genericapiserver.Config) {
		c.RESTOptionsGetter = getterFor(config)
		// As EtcdOptions.ApplyTo does, but with a way to end it.
		own, err := factory.CreateHealthCheck(*config, stop)
		require.NoError(t, err)
		check := func(*http.Request) error { return own() }
		c.AddHealthChecks(healthz.NamedGroupedCheck("etcd", "etcd", check))
		c.AddReadyzChecks(healthz.NamedGroupedCheck("etcd-readiness", "etcd-readiness", check))
		require.NoError(t, Install(c))
		opened, destroy := open(t, c.RESTOptionsGetter, "pods")
		t.Cleanup(destroy)
		cached = opened
	})
	require.NoError(t, cached.(*cacher.Cacher).Wait(context.Background()))
	server.PrepareRun()
	readiness := []string{"/readyz/etcd", "/readyz/etcd-readiness", "/healthz/etcd"}
	for _, path := range readiness {
		require.Equal(t, http.StatusOK, code(server, path), path)
	}

	// Of a server that is not run, hooks that run after the start fail as well.
	failing := func(path string) (checks []string) {
		for line := range strings.Lines(get(server, path).Body.String()) {
			if strings.HasPrefix(line, "[-]") && !strings.HasPrefix(line, "[-]poststarthook/") {
				checks = append(checks, strings.TrimSpace(line))
			}
		}
		return checks
	}
	require.Empty(t, failing("/readyz?verbose"))

	stopEtcd()
	for _, path := range readiness {
		require.Equal(t, http.StatusInternalServerError, code(server, path), path)
	}
	require.NotContains(t, get(server, "/livez?verbose").Body.String(), "etcd")
	// docs/production.md: a probe that leaves the checks of etcd out keeps a server in
	// service, for the reads that the cache answers alone.
	require.Equal(t, []string{"[-]etcd failed: reason withheld", "[-]etcd-readiness failed: reason withheld"}, failing("/readyz?verbose"))
	require.Empty(t, failing("/readyz?verbose&exclude=etcd&exclude=etcd-readiness"))
	any := storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true}
	require.NoError(t, cached.GetList(t.Context(), "/"+example.GroupName+"/pods/", any, &example.PodList{}))
	startEtcd()

	consistent := func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return cached.GetList(ctx, "/"+example.GroupName+"/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, &example.PodList{}) == nil
	}
	require.Eventually(t, consistent, time.Minute, time.Millisecond)
	for _, path := range readiness {
		if code(server, path) != http.StatusOK {
			require.Equal(t, http.StatusOK, code(server, path), "%s, a second time after a read was answered", path)
		}
	}
}
