// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/kube-watchcache/watchcache/internal/endpoints"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// defaultCheckTimeout is the default timeout of EtcdOptions' health checks.
const defaultCheckTimeout = 2 * time.Second

// The groups of EtcdOptions' checks.
const (
	healthGroup    = "etcd"
	readinessGroup = "etcd-readiness"
)

// replaceEtcdChecks replaces EtcdOptions' checks with checks through the pool's clients.
// EtcdOptions' own client backs off during an outage, so its checks may fail for more than a minute
// after the caches are connected again.
//
// It removes etcd from /livez, because a restart does not end an outage of etcd, but loses the
// caches.
//
// Copies of config share the slices, so we replace them.
func replaceEtcdChecks(config *genericapiserver.Config, pool *pool) {
	timeouts, servers := checksOf(config.RESTOptionsGetter)
	replace := func(checks []healthz.HealthChecker) []healthz.HealthChecker {
		replaced := slices.Clone(checks)
		for i, check := range replaced {
			if ours, ok := check.(*etcdCheck); ok {
				check = ours.GroupedHealthChecker // config is a copy of a Config that we changed
			}
			if own, ok := etcdCheckOf(check); ok {
				replaced[i] = &etcdCheck{GroupedHealthChecker: own, pool: pool, servers: servers[own.Name()], timeout: timeouts[own.GroupName()]}
			}
		}
		return replaced
	}
	config.HealthzChecks = replace(config.HealthzChecks)
	config.ReadyzChecks = replace(config.ReadyzChecks)
	config.LivezChecks = slices.DeleteFunc(slices.Clone(config.LivezChecks), func(check healthz.HealthChecker) bool {
		_, ok := etcdCheckOf(check)
		return ok
	})
}

// etcdCheckOf returns the check if EtcdOptions added it.
func etcdCheckOf(check healthz.HealthChecker) (healthz.GroupedHealthChecker, bool) {
	grouped, ok := check.(healthz.GroupedHealthChecker)
	return grouped, ok && (grouped.GroupName() == healthGroup || grouped.GroupName() == readinessGroup)
}

// checksOf returns the settings of EtcdOptions' checks, or defaults for other getters: timeouts by
// group and etcd servers by check. The names follow EtcdOptions, which numbers distinct sets of
// servers in --etcd-servers-overrides.
func checksOf(getter generic.RESTOptionsGetter) (timeouts map[string]time.Duration, servers map[string]string) {
	var options genericoptions.EtcdOptions
	if made, ok := getter.(*genericoptions.StorageFactoryRestOptionsFactory); ok {
		options = made.Options
	}
	config := options.StorageConfig
	usual := endpoints.Key(config.Transport.ServerList)
	servers = map[string]string{"etcd": usual, "etcd-readiness": usual}
	timeouts = map[string]time.Duration{
		healthGroup:    cmp.Or(config.HealthcheckTimeout, defaultCheckTimeout),
		readinessGroup: cmp.Or(config.ReadycheckTimeout, defaultCheckTimeout),
	}
	overrides, _ := genericoptions.ParseEtcdServersOverrides(options.EtcdServersOverrides) // EtcdOptions rejects invalid overrides
	var known []string                                                                     // distinct sets of servers, as EtcdOptions counts its checks
	for _, override := range overrides {
		set := strings.Join(slices.Sorted(slices.Values(override.Servers)), ",")
		if slices.Contains(known, set) {
			continue
		}
		servers[fmt.Sprintf("etcd-override-%d", len(known))] = endpoints.Key(override.Servers)
		servers[fmt.Sprintf("etcd-override-readiness-%d", len(known))] = endpoints.Key(override.Servers)
		known = append(known, set)
	}
	return timeouts, servers
}

// etcdCheck checks etcd through the clients of the caches.
type etcdCheck struct {
	healthz.GroupedHealthChecker // the replaced check
	pool                         *pool
	servers                      string // "" for all
	timeout                      time.Duration
}

// Check implements healthz.HealthChecker. It runs the replaced check if no cache has a client of
// the servers. It always passes under /livez, where a delegating server lists it.
func (c *etcdCheck) Check(r *http.Request) error {
	ctx := context.Background()
	if r != nil {
		if strings.HasPrefix(r.URL.Path, "/livez") {
			return nil
		}
		ctx = r.Context()
	}
	asked, err := c.pool.healthy(ctx, c.servers, c.timeout)
	if !asked {
		return c.GroupedHealthChecker.Check(r)
	}
	return err
}

// healthy checks the etcd servers of the open clients, or only the given ones. asked is false if
// there is no such client. Concurrent calls with the same timeout share a result, so that requests
// for /readyz can't overload etcd.
func (p *pool) healthy(ctx context.Context, servers string, timeout time.Duration) (asked bool, err error) {
	answer := p.checks.DoChan(timeout.String()+" "+servers, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		open := p.backends.Open(func(key poolKey) bool { return servers == "" || key.servers == servers })
		errs := make([]error, len(open))
		var asking sync.WaitGroup
		for n, b := range open {
			asking.Go(func() { errs[n] = b.Healthy(ctx) })
		}
		asking.Wait()
		errs = slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, etcd3.ErrClosed) }) // closed since
		return len(errs) > 0, errors.Join(errs...)
	})
	select {
	case got := <-answer:
		return got.Val.(bool), got.Err
	case <-ctx.Done():
		return true, fmt.Errorf("etcd has not answered yet: %w", ctx.Err())
	}
}
