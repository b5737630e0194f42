// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// maxExact is the highest number such that a float64, the type of every metric, can
// hold each whole number up to it.
const maxExact = 1 << 53

// descs are the collectors' descriptions, in the order of specs.
var descs = sync.OnceValue(func() []*prometheus.Desc {
	all := make([]*prometheus.Desc, len(specs))
	for i := range specs {
		names := []string{"group", "resource"}
		for _, l := range specs[i].Labels {
			names = append(names, l.Name)
		}
		all[i] = prometheus.NewDesc(string(specs[i].Name), specs[i].Help, names, nil)
	}
	return all
})

// Describe implements prometheus.Collector.
func (c *collectors) Describe(out chan<- *prometheus.Desc) {
	for _, d := range descs() {
		out <- d
	}
}

// Collect implements prometheus.Collector. The metrics are made here, of what was
// counted.
func (c *collectors) Collect(out chan<- prometheus.Metric) {
	for _, u := range c.copyUsers() {
		for i := range specs {
			if spec := &specs[i]; spec.Asleep || u.series != nil {
				e := exporter{out: out, spec: spec, desc: descs()[i], id: u.id}
				e.collect(u)
			}
		}
	}
}

// exporter exports the series of one metric and one identity.
type exporter struct {
	out  chan<- prometheus.Metric
	spec *spec
	desc *prometheus.Desc
	id   identity
}

func (e *exporter) collect(u user) {
	switch {
	case e.spec.cells != nil:
		e.cells(e.spec.cells(u.series))
	case e.spec.histograms != nil:
		e.histograms(e.spec.histograms(u.series))
	case e.spec.named != nil:
		e.spec.named(u.series).each(func(name string, count listed) { e.export(float64(count.lists), name) })
	case e.spec.computed != nil:
		if v, ok := e.spec.computed(u); ok {
			e.export(v)
		}
	}
}

// exact is a gauge of a whole number that is left out while it is 0 or a float64 can't
// hold it.
func exact(of func(*series) *cell) func(user) (float64, bool) {
	return func(u user) (float64, bool) {
		n := of(u.series).Load()
		return float64(n), n > 0 && n <= maxExact
	}
}

// cells exports the cells of a metric. A counter with labels is left out until
// it has counted something, and so is everything that is labelled other.
func (e *exporter) cells(all []cell) {
	for i := range all {
		n := all[i].Load()
		values := e.spec.valuesAt(i)
		if n == 0 && len(values) > 0 && (e.spec.Kind == Counter || values[0] == other) {
			continue
		}
		if e.spec.Kind == Gauge {
			e.export(math.Float64frombits(n), values...)
		} else {
			e.export(float64(n), values...)
		}
	}
}

func (e *exporter) histograms(all []lazyHistogram) {
	for i := range all {
		if made := all[i].made.Load(); made != nil {
			e.out <- labelled{made, e.desc, prometheus.MakeLabelPairs(e.desc, e.values(e.spec.valuesAt(i)))}
		}
	}
}

func (e *exporter) export(v float64, own ...string) {
	kind := prometheus.CounterValue
	if e.spec.Kind == Gauge {
		kind = prometheus.GaugeValue
	}
	e.out <- prometheus.MustNewConstMetric(e.desc, kind, v, e.values(own)...)
}

// values returns the values of all labels.
func (e *exporter) values(own []string) []string {
	return append([]string{e.id.group, e.id.resource}, own...)
}

// valuesAt returns the values of the metric's own labels at an index of its cells.
func (s *spec) valuesAt(index int) []string {
	values := make([]string, len(s.Labels))
	for i := len(s.Labels) - 1; i >= 0; i-- {
		all := s.Labels[i].Values
		values[i] = all[index%len(all)]
		index /= len(all)
	}
	return values
}

const (
	// nativeFactor bounds how much longer each native bucket is than the one
	// below, and nativeBuckets how many of them a histogram keeps: with more, it
	// makes them coarser. The bounds are small because each series has them.
	nativeFactor  = 1.3
	nativeBuckets = 48
)

// lazyHistogram is a histogram that is made with its first observation: one
// takes more memory than all counters of a cache.
type lazyHistogram struct {
	made atomic.Pointer[madeHistogram]
}

type madeHistogram struct{ prometheus.Histogram }

// observe records a value in the histogram of the metric with the name.
func (h *lazyHistogram) observe(name Name, v float64) {
	made := h.made.Load()
	if made == nil {
		h.made.CompareAndSwap(nil, newHistogram(name))
		made = h.made.Load()
	}
	made.Observe(v)
}

func newHistogram(name Name) *madeHistogram {
	i := slices.IndexFunc(specs, func(s spec) bool { return s.Name == name })
	return &madeHistogram{prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: string(name), Help: specs[i].Help, Buckets: specs[i].Buckets,
		NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeBuckets,
		NativeHistogramMaxExemplars: -1,
	})}
}

// labelled is a histogram under the labels of its series.
type labelled struct {
	histogram *madeHistogram
	desc      *prometheus.Desc
	labels    []*dto.LabelPair
}

// Desc implements prometheus.Metric.
func (l labelled) Desc() *prometheus.Desc { return l.desc }

// Write implements prometheus.Metric.
func (l labelled) Write(out *dto.Metric) error {
	if err := l.histogram.Write(out); err != nil {
		return err
	}
	out.Label = l.labels
	return nil
}
