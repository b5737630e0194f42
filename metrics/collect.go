// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// maxExact is the highest whole number up to which a float64, the type of every
// metric, can hold each whole number.
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
			e := exporter{out: out, spec: &specs[i], desc: descs()[i], id: u.id}
			switch {
			case e.spec.Asleep:
				e.export(e.spec.presence(u.presence))
			case u.series != nil:
				e.series(u.series)
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

func (e *exporter) series(s *series) {
	switch {
	case e.spec.cells != nil:
		e.cells(e.spec.cells(s))
	case e.spec.exact != nil:
		if n := e.spec.exact(s).Load(); n > 0 && n <= maxExact {
			e.export(float64(n))
		}
	case e.spec.histograms != nil:
		e.histograms(e.spec.histograms(s))
	case e.spec.named != nil:
		e.spec.named(s).each(func(name string, count uint64) { e.export(float64(count), name) })
	case e.spec.computed != nil:
		if v, ok := e.spec.computed(s); ok {
			e.export(v)
		}
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
