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
	servers, timeouts := serversByCheck(config.RESTOptionsGetter), timeoutsByGroup(config.RESTOptionsGetter)
	replace := func(checks []healthz.HealthChecker) []healthz.HealthChecker {
		replaced := slices.Clone(checks)
		for i, check := range replaced {
			if ours, ok := check.(*etcdCheck); ok && ours.pool == pool {
				continue // of a Config that this one was copied from
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
	if !ok {
		return nil, false
	}
	return grouped, grouped.GroupName() == healthGroup || grouped.GroupName() == readinessGroup
}

// timeoutsByGroup returns how long the checks of each group wait for etcd:
// --etcd-healthcheck-timeout and --etcd-readycheck-timeout.
func timeoutsByGroup(getter generic.RESTOptionsGetter) map[string]time.Duration {
	timeouts := map[string]time.Duration{healthGroup: defaultCheckTimeout, readinessGroup: defaultCheckTimeout}
	if made, ok := getter.(*genericoptions.StorageFactoryRestOptionsFactory); ok {
		config := made.Options.StorageConfig
		timeouts[healthGroup] = cmp.Or(config.HealthcheckTimeout, defaultCheckTimeout)
		timeouts[readinessGroup] = cmp.Or(config.ReadycheckTimeout, defaultCheckTimeout)
	}
	return timeouts
}

// serversByCheck returns the servers that each of EtcdOptions' checks asks, by
// the name of the check: --etcd-servers, and each other set of servers in
// --etcd-servers-overrides, in the order of the flags. The map is empty for a
// getter that EtcdOptions has not made.
func serversByCheck(getter generic.RESTOptionsGetter) map[string]string {
	made, ok := getter.(*genericoptions.StorageFactoryRestOptionsFactory)
	if !ok {
		return nil
	}
	usual := endpoints.Key(made.Options.StorageConfig.Transport.ServerList)
	byCheck := map[string]string{"etcd": usual, "etcd-readiness": usual}
	overrides, err := genericoptions.ParseEtcdServersOverrides(made.Options.EtcdServersOverrides)
	if err != nil {
		return byCheck // EtcdOptions has refused them
	}
	var known []string // as EtcdOptions tells the sets of servers apart, by which it counts its checks
	for _, override := range overrides {
		set := strings.Join(slices.Sorted(slices.Values(override.Servers)), ",")
		if slices.Contains(known, set) {
			continue
		}
		servers := endpoints.Key(override.Servers)
		byCheck[fmt.Sprintf("etcd-override-%d", len(known))] = servers
		byCheck[fmt.Sprintf("etcd-override-readiness-%d", len(known))] = servers
		known = append(known, set)
	}
	return byCheck
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
		return p.ask(ctx, servers)
	})
	select {
	case got := <-answer:
		return got.Val.(bool), got.Err
	case <-ctx.Done():
		return true, fmt.Errorf("etcd has not answered yet: %w", ctx.Err())
	}
}

func (p *pool) ask(ctx context.Context, servers string) (asked bool, err error) {
	open := p.backends.Open(func(key poolKey) bool { return servers == "" || key.servers == servers })
	answers := make(chan error, len(open))
	for _, b := range open {
		go func() { answers <- b.Healthy(ctx) }()
	}
	var errs []error
	for range open {
		switch err := <-answers; {
		case errors.Is(err, etcd3.ErrClosed): // closed in the meantime
		case err != nil:
			errs = append(errs, err)
			asked = true
		default:
			asked = true
		}
	}
	return asked, errors.Join(errs...)
}
