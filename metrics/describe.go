// SPDX-License-Identifier: Apache-2.0

package metrics

import "slices"

// Name is the full name of a metric, as Prometheus exports it.
type Name string

// Kind is the Prometheus type of a metric.
type Kind string

// The kinds of metrics. A histogram has classic buckets, and native ones for a
// Prometheus that asks for them.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Label is a label beyond group and resource, which every metric has.
type Label struct {
	Name string
	// Values are all values that the label can have. There are none where the
	// values come from the configuration of the cache.
	Values []string
}

// Description describes one metric. Collectors, documentation, dashboards and
// alert rules are made from the list of descriptions that List returns.
type Description struct {
	Name   Name
	Kind   Kind
	Help   string
	Labels []Label
	// Buckets are the upper bounds of a histogram's classic buckets.
	Buckets []float64
	// Asleep reports whether a cache has the metric also while it sleeps.
	Asleep bool
	// Purpose says what the metric is for, Normal which values are usual, and
	// High what to do when it is high (or, of a gauge that should be 1, when it is
	// not).
	Purpose, Normal, High string
}

// List returns the descriptions of all metrics, in the order of the
// documentation. The caller owns the result.
func List() []Description {
	out := make([]Description, len(specs))
	for i := range specs {
		out[i] = specs[i].Description
		out[i].Buckets = slices.Clone(out[i].Buckets)
		out[i].Labels = slices.Clone(out[i].Labels)
		for l := range out[i].Labels {
			out[i].Labels[l].Values = slices.Clone(out[i].Labels[l].Values)
		}
	}
	return out
}
