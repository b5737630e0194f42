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

// defaultCheckTimeout is how long a health check waits for etcd where no flag
// says otherwise. EtcdOptions' checks have the same timeout.
const defaultCheckTimeout = 2 * time.Second

// The groups of EtcdOptions' checks.
const (
	healthGroup    = "etcd"
	readinessGroup = "etcd-readiness"
)

// replaceEtcdChecks replaces the checks that EtcdOptions adds by checks that
// ask etcd through the pool's clients. EtcdOptions' checks have a client of
// their own, whose pauses between two attempts to connect grow with an outage:
// they may go on failing for a minute and more after the caches' clients have
// connected again.
//
// Liveness no longer depends on etcd: restarting its clients does not end an
// outage of etcd, and a restart loses the caches.
//
// The slices of config are replaced, not written to: copies of config share
// them.
func replaceEtcdChecks(config *genericapiserver.Config, pool *pool) {
	timeouts, servers := checksOf(config.RESTOptionsGetter)
	replace := func(checks []healthz.HealthChecker) []healthz.HealthChecker {
		replaced := slices.Clone(checks)
		for i, check := range replaced {
			if ours, ok := check.(*etcdCheck); ok {
				check = ours.GroupedHealthChecker // of a Config that this one was copied from
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

// etcdCheckOf reports whether EtcdOptions has added a check. It adds two groups of them.
func etcdCheckOf(check healthz.HealthChecker) (healthz.GroupedHealthChecker, bool) {
	grouped, ok := check.(healthz.GroupedHealthChecker)
	return grouped, ok && (grouped.GroupName() == healthGroup || grouped.GroupName() == readinessGroup)
}

// checksOf returns the settings of EtcdOptions' checks: how long those of a group wait for
// etcd, and the servers that each asks, by its name. No servers are known of a getter that
// EtcdOptions has not made. checksOf reads --etcd-healthcheck-timeout,
// --etcd-readycheck-timeout, --etcd-servers, and each other set of servers in
// --etcd-servers-overrides, in the order of the flags.
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
	overrides, _ := genericoptions.ParseEtcdServersOverrides(options.EtcdServersOverrides) // EtcdOptions has refused wrong ones
	var known []string                                                                     // sets of servers, by which EtcdOptions counts its checks
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

// etcdCheck asks etcd through the clients of the caches.
type etcdCheck struct {
	healthz.GroupedHealthChecker // the check that is replaced
	pool                         *pool
	servers                      string // "" for all
	timeout                      time.Duration
}

// Check implements healthz.HealthChecker. If no cache has a client of the
// servers, because nothing is cached or the storage is the caller's own, the
// replaced check decides. A server that delegates to this one shows these
// checks under /livez, too: there they always pass.
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

// healthy asks the etcd servers of each open client, or of those with the given
// servers. asked is false if there is no such client. Concurrent requests with the
// same timeout share an answer, so that clients of /readyz can't overload etcd.
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
		errs = slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, etcd3.ErrClosed) }) // in the meantime
		return len(errs) > 0, errors.Join(errs...)
	})
	select {
	case got := <-answer:
		return got.Val.(bool), got.Err
	case <-ctx.Done():
		return true, fmt.Errorf("etcd has not answered yet: %w", ctx.Err())
	}
}
