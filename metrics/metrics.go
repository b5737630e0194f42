// SPDX-License-Identifier: Apache-2.0

// Package metrics holds the Prometheus metrics of the watch cache.
//
// [New] registers the collectors on a registry that the caller chooses;
// nothing is registered on a global one. [Metrics.For] returns the handles of
// one cache, labelled with its group and resource. All handles may be nil. Those
// of a nil *Metrics count for [Resource.Totals] and export nothing, so that
// callers need not ask whether metrics are on.
//
// [Resource.Mirror] has the counts passed on to the metrics of the cacher that
// k8s.io/apiserver ships as well, which a server registers.
//
// Every metric is an entry of one list ([List]). To add one, add it to the specs,
// give [Resource] a method for it, and a row in the test that proves that the
// method changes its own metric and no other.
//
// A series of a counter or histogram with labels appears when it is first
// counted; unlabelled counters and gauges are there while the cache is awake.
package metrics

import (
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Metrics is the set of the watch cache's collectors on one registry. Its
// methods may be called from any goroutine, and on nil.
type Metrics struct {
	mu struct {
		sync.Mutex
		users map[schema.GroupResource]*user
	}
}

// collector registers all metrics together or not at all, and a second New on the
// registry finds them together with their users.
type collector struct{ *Metrics }

// New registers the collectors on reg. On a registry that has them already
// New returns a Metrics that shares them. If a collector that is not ours holds
// one of the names, New registers nothing and returns an error that has the
// name in it.
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

// For returns the handles of the cache of one resource; group is "" for the
// core group. Its series are exported from now on, until [Resource.Forget].
// Caches of the same group and resource share the series: their counts add up,
// and a gauge shows the last value set.
func (m *Metrics) For(group, resource string) *Resource {
	r := m.ForAsleep(group, resource)
	r.awake()
	return r
}

// ForAsleep is For for a cache that sleeps: the handles count nothing before
// WokenUp.
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

// user is shared by the handles of one resource. It counts them, so that a cache that is
// replaced does not take the series from its successor; and how many of them are of
// caches that are awake. All but wokenUp is guarded by Metrics.mu.
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

// count changes how many handles a user has, and how many of them are awake. The series
// come with the first one that is awake and go with the last; with the last handle
// everything of the resource goes.
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
