// SPDX-License-Identifier: Apache-2.0

// Package metrics provides the Prometheus metrics of the watch cache.
//
// [New] registers the collectors on the given registry, never on a global one. [Metrics.For]
// returns the handles of one cache, labelled with its group and resource. All handles may be nil.
// Handles of a nil *Metrics count for [Resource.Totals] only, so callers need not check whether
// metrics are enabled.
//
// [Resource.Mirror] also counts in the metrics of k8s.io/apiserver's cacher, registered by a
// server.
//
// [List] describes every metric. To add one, add a spec, a method of [Resource], and a row in the
// test that proves that the method changes this metric only.
//
// A series of a labelled counter or histogram appears with its first count. Other counters and
// gauges exist while the cache is awake.
package metrics

import (
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Metrics is the watch cache's collectors on one registry. Its methods are safe for concurrent use,
// also on nil.
type Metrics struct {
	mu struct {
		sync.Mutex
		users map[schema.GroupResource]*user
	}
}

// collector registers all metrics or none. A second New on the registry finds it with its users.
type collector struct{ *Metrics }

// New registers the collectors on reg, or returns the Metrics already registered there. If a
// foreign collector uses one of the names, New registers nothing and returns an error with the
// name.
func New(reg prometheus.Registerer) (*Metrics, error) {
	if reg == nil {
		return nil, errors.New("metrics: registerer: must not be nil")
	}
	m := newMetrics()
	err := reg.Register(collector{m})
	var registered prometheus.AlreadyRegisteredError
	if errors.As(err, &registered) {
		if ours, ok := registered.ExistingCollector.(collector); ok {
			return ours.Metrics, nil
		}
		return nil, fmt.Errorf("metrics: the registry holds a foreign collector (%T) with the names of the watch cache's: %w",
			registered.ExistingCollector, err)
	}
	if err != nil {
		return nil, fmt.Errorf("metrics: the watch cache's collectors can't be registered: %w", err)
	}
	return m, nil
}

// For returns the handles of one resource's cache, with group "" for the core group, and exports
// its series until [Resource.Forget]. Caches of the same group and resource share the series:
// counts add up, a gauge shows the last value.
func (m *Metrics) For(group, resource string) *Resource {
	r := m.ForAsleep(group, resource)
	r.awake()
	return r
}

// ForAsleep is For for a sleeping cache. The handles count nothing until WokenUp.
func (m *Metrics) ForAsleep(group, resource string) *Resource {
	if m == nil {
		m = newMetrics() // on no registry
	}
	id := schema.GroupResource{Group: group, Resource: resource}
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.mu.users[id]
	if u == nil {
		u = &user{id: id}
		m.mu.users[id] = u
	}
	u.handles++
	return &Resource{metrics: m, user: u}
}

// user is shared by the handles of one resource and counts them, so that a replaced cache doesn't
// drop its successor's series. Except for wokenUp, it is guarded by Metrics.mu.
type user struct {
	id             schema.GroupResource
	handles, awake int
	series         *series // nil while no handle is awake
	wokenUp        cell
}

func newMetrics() *Metrics {
	m := new(Metrics)
	m.mu.users = make(map[schema.GroupResource]*user)
	return m
}

// count adds to a user's handles, total and awake. The user exists while it has handles, its series
// while one is awake.
func (m *Metrics) count(u *user, handles, awake int) *series {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.handles += handles; u.handles == 0 && handles < 0 {
		delete(m.mu.users, u.id)
	}
	if u.awake += awake; u.awake == 0 {
		u.series = nil
	} else if u.series == nil {
		u.series = &series{id: u.id}
	}
	return u.series
}
