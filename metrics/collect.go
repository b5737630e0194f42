// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxExact bounds the whole numbers that a float64, the type of every metric, represents exactly.
const maxExact = 1 << 53

// descs are the collectors' descriptions, in the order of specs.
var descs = sync.OnceValue(func() []*prometheus.Desc {
	all := make([]*prometheus.Desc, len(specs))
	for i := range specs {
		all[i] = prometheus.NewDesc(string(specs[i].name), specs[i].about.Help, specs[i].labelNames(), nil)
	}
	return all
})

func (s *spec) labelNames() []string {
	names := []string{"group", "resource"}
	for _, l := range s.about.Labels {
		names = append(names, l.Name)
	}
	return names
}

// labelValues returns the values of all labels for the index of a cell.
func (s *spec) labelValues(id schema.GroupResource, index int) []string {
	values := make([]string, 2+len(s.about.Labels))
	for i := len(s.about.Labels) - 1; i >= 0; i-- {
		all := s.about.Labels[i].Values
		values[2+i] = all[index%len(all)]
		index /= len(all)
	}
	values[0], values[1] = id.Group, id.Resource
	return values
}

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range descs() {
		out <- d
	}
}

// view is what Collect reads of a user. The series are nil while all caches sleep.
type view struct {
	*series
	id      schema.GroupResource
	wokenUp uint64
}

// Collect implements prometheus.Collector. It creates the metrics from the counts.
func (c collector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	views := make([]view, 0, len(c.mu.users))
	for id, u := range c.mu.users {
		views = append(views, view{u.series, id, u.wokenUp.Load()})
	}
	c.mu.Unlock()
	for _, v := range views {
		for i := range specs {
			if specs[i].about.Asleep || v.series != nil {
				specs[i].collect(v, descs()[i], out)
			}
		}
	}
}

// collect exports the series of one metric and resource, except for zero counters with labels and
// zero gauges labelled other.
func (s *spec) collect(v view, desc *prometheus.Desc, out chan<- prometheus.Metric) {
	kind := prometheus.CounterValue
	if s.kind == Gauge {
		kind = prometheus.GaugeValue
	}
	export := func(n float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, kind, n, labels...)
	}
	switch all := s.values(v).(type) {
	case float64:
		export(all, v.id.Group, v.id.Resource)
	case *namedCounters:
		all.each(func(name string, n listed) { export(float64(n.lists), v.id.Group, v.id.Resource, name) })
	case []lazyHistogram:
		for i := range all {
			if made := all[i].Load(); made != nil {
				out <- *made
			}
		}
	case []cell:
		for i := range all {
			n, labels := all[i].Load(), s.labelValues(v.id, i)
			switch {
			case n == 0 && len(s.about.Labels) > 0 && (s.kind == Counter || labels[2] == other):
			case s.kind == Gauge:
				export(math.Float64frombits(n), labels...)
			default:
				export(float64(n), labels...)
			}
		}
	}
}

// exact returns a whole number, or nil if it is 0 or a float64 can't represent it.
func exact(c *cell) any {
	if n := c.Load(); n > 0 && n <= maxExact {
		return float64(n)
	}
	return nil
}

func (s *series) silent() any {
	if silence := s.silence.Load(); silence != nil {
		return (*silence)().Seconds()
	}
	return nil
}

const (
	// nativeFactor bounds the growth of native buckets, nativeBuckets their number, beyond which a
	// histogram makes them coarser. Both are small because each series has buckets.
	nativeFactor  = 1.3
	nativeBuckets = 48
)

// lazyHistogram is a histogram created with its first observation, because it takes more memory
// than all counters of a cache.
type lazyHistogram = atomic.Pointer[prometheus.Histogram]

func observe[V ~uint8](s *series, metric Name, all []lazyHistogram, value V, d time.Duration) {
	index := 0
	if int(value) < len(all) {
		index = int(value)
	}
	h := all[index].Load()
	if h == nil {
		h = s.newHistogram(metric, index)
		if !all[index].CompareAndSwap(nil, h) {
			h = all[index].Load()
		}
	}
	(*h).Observe(d.Seconds())
}

func (s *series) newHistogram(metric Name, index int) *prometheus.Histogram {
	spec := &specs[slices.IndexFunc(specs, func(spec spec) bool { return spec.name == metric })]
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: string(spec.name), Help: spec.about.Help, Buckets: spec.about.Buckets,
		NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeBuckets,
		NativeHistogramMaxExemplars: -1,
	}, spec.labelNames()).WithLabelValues(spec.labelValues(s.id, index)...).(prometheus.Histogram)
	return &h
}
