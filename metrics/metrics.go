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
	r := &Resource{}
	if m == nil {
		return r
	}
	r.collectors = m.c
	r.series.Store(m.c.acquire(identity{group, resource}))
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
// cache that is replaced does not take the series from its successor.
type user struct {
	handles int
	series  *series
}

// vector is what the three kinds of collectors have in common here.
type vector interface {
	prometheus.Collector
	DeletePartialMatch(prometheus.Labels) int
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

// acquire gives the series of id, creating them for the first handle.
func (c *collectors) acquire(id identity) *series {
	c.mu.Lock()
	defer c.mu.Unlock()
	u, ok := c.mu.users[id]
	if !ok {
		u = &user{series: newSeries(c, id)}
		c.mu.users[id] = u
	}
	u.handles++
	return u.series
}

// release gives back what acquire gave. With the last handle the label values
// of id are deleted.
func (c *collectors) release(id identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.mu.users[id]
	u.handles--
	if u.handles > 0 {
		return
	}
	delete(c.mu.users, id)
	for _, v := range c.all {
		v.DeletePartialMatch(prometheus.Labels{"group": id.group, "resource": id.resource})
	}
}
