// SPDX-License-Identifier: Apache-2.0

// Package metrics holds the Prometheus metrics of the watch cache.
//
// [New] registers the collectors on a registry that the caller chooses;
// nothing is registered on a global one. [Metrics.For] gives the handles of
// one cache, labelled with its group and resource. All handles may be nil:
// a nil *Metrics gives a *Resource that drops what it is told, so that no
// caller asks whether metrics are on.
//
// Every metric is an entry of one list (specs.go). To add one, add it there,
// give [Resource] a method for it, and a row in the test that proves that the
// method changes its own metric and no other.
package metrics

import (
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is the set of the watch cache's collectors on one registry. Its
// methods may be called from any goroutine, and on nil.
type Metrics struct {
	c *collectors
}

// New registers the collectors on reg. On a registry that has them already
// it gives a Metrics that shares them. If a collector that is not ours holds
// one of the names, New registers nothing and returns an error that has the
// name in it.
func New(reg prometheus.Registerer) (*Metrics, error) {
	if reg == nil {
		return nil, errors.New("metrics: registerer: must not be nil")
	}
	c := newCollectors(specs)
	err := reg.Register(c)
	var registered prometheus.AlreadyRegisteredError
	switch {
	case err == nil:
		return &Metrics{c: c}, nil
	case errors.As(err, &registered):
		if ours, ok := registered.ExistingCollector.(*collectors); ok {
			return &Metrics{c: ours}, nil
		}
		return nil, fmt.Errorf("metrics: the registry holds a foreign collector (%T) with the names of the watch cache's: %w",
			registered.ExistingCollector, err)
	default:
		return nil, fmt.Errorf("metrics: the watch cache's collectors can't be registered: %w", err)
	}
}

// For gives the handles of the cache of one resource; group is "" for the
// core group. Its series are exported from now on, at zero, until
// [Resource.Forget]. Caches of the same group and resource share the series:
// their counts add up, and a gauge shows what was set last.
func (m *Metrics) For(group, resource string) *Resource {
	r := m.ForAsleep(group, resource)
	r.awake()
	return r
}

// ForAsleep is For for a cache that sleeps: the handles count nothing before
// WokenUp.
func (m *Metrics) ForAsleep(group, resource string) *Resource {
	if m == nil {
		return &Resource{}
	}
	r := &Resource{collectors: m.c, id: identity{group, resource}}
	r.presence.Store(m.c.acquire(r.id))
	return r
}

// identity is what tells the series of one cache from those of another.
type identity struct {
	group, resource string
}

// collectors is all metrics as one prometheus.Collector: they are registered
// together or not at all, and a second New on the registry finds them
// together with who uses them.
type collectors struct {
	gauges     map[string]*prometheus.GaugeVec
	counters   map[string]*prometheus.CounterVec
	histograms map[string]*prometheus.HistogramVec
	all        []vector

	mu struct {
		sync.Mutex
		users map[identity]*user
	}
}

// user counts the handles that share the series of one identity, so that a
// cache that is replaced does not take the series from its successor; and how
// many of them are of caches that are awake.
type user struct {
	handles, awake int
	presence       *presence
	series         *series
}

// vector is what the three kinds of collectors have in common here.
type vector interface {
	prometheus.Collector
	DeleteLabelValues(values ...string) bool
}

func newCollectors(list []spec) *collectors {
	c := &collectors{
		gauges:     map[string]*prometheus.GaugeVec{},
		counters:   map[string]*prometheus.CounterVec{},
		histograms: map[string]*prometheus.HistogramVec{},
	}
	c.mu.users = map[identity]*user{}
	for _, s := range list {
		names := []string{"group", "resource"}
		for _, l := range s.labels {
			names = append(names, l.name)
		}
		switch s.kind {
		case gauge:
			v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + s.name, Help: s.help}, names)
			c.gauges[s.name] = v
			c.all = append(c.all, v)
		case counter:
			v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + s.name, Help: s.help}, names)
			c.counters[s.name] = v
			c.all = append(c.all, v)
		case histogram:
			v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + s.name, Help: s.help, Buckets: s.buckets}, names)
			c.histograms[s.name] = v
			c.all = append(c.all, v)
		}
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collectors) Describe(out chan<- *prometheus.Desc) {
	for _, v := range c.all {
		v.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (c *collectors) Collect(out chan<- prometheus.Metric) {
	for _, v := range c.all {
		v.Collect(out)
	}
}

// acquire counts one more handle of id, and gives what it has asleep or awake.
func (c *collectors) acquire(id identity) *presence {
	c.mu.Lock()
	defer c.mu.Unlock()
	u, ok := c.mu.users[id]
	if !ok {
		u = &user{presence: newPresence(c, id)}
		c.mu.users[id] = u
	}
	u.handles++
	return u.presence
}

// wake gives the series of id, creating them for the first handle that is
// awake.
func (c *collectors) wake(id identity) *series {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.mu.users[id]
	if u.awake == 0 {
		u.series = newSeries(c, id)
		u.presence.asleep.Set(0)
	}
	u.awake++
	return u.series
}

// rest gives back what wake gave. With the last handle that was awake the label
// values of id are deleted, but for those of its presence.
func (c *collectors) rest(id identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.mu.users[id]
	if u.awake--; u.awake > 0 {
		return
	}
	u.series = nil
	u.presence.asleep.Set(1)
	c.deleteAll(id, false)
}

// release gives back what acquire gave. With the last handle everything of id
// is deleted.
func (c *collectors) release(id identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.mu.users[id]
	if u.handles--; u.handles > 0 {
		return
	}
	delete(c.mu.users, id)
	c.deleteAll(id, true)
}

// deleteAll deletes the label values of id from the metrics that a cache has
// only while it is awake, or from those that it always has. It names each, for
// a search would look at those of all other caches.
func (c *collectors) deleteAll(id identity, always bool) {
	for i, s := range specs {
		if s.always == always {
			deleteValues(c.all[i], s.labels, id.group, id.resource)
		}
	}
}

func deleteValues(v vector, labels []label, values ...string) {
	if len(labels) == 0 {
		v.DeleteLabelValues(values...)
		return
	}
	for _, value := range labels[0].values {
		deleteValues(v, labels[1:], append(values[:len(values):len(values)], value)...)
	}
}
