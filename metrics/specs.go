// SPDX-License-Identifier: Apache-2.0

package metrics

import "slices"

// spec is one metric: its description, and where its values are. One of the
// functions is set. Cells and histograms return those of all combinations of label
// values; see series.
type spec struct {
	Description

	cells      func(*series) []cell
	histograms func(*series) []lazyHistogram
	// exact is a gauge of a whole number that is left out while it is 0 or a
	// float64 can't hold it.
	exact func(*series) *cell
	// named has counters by the values of the one label.
	named func(*series) *namedCounters
	// computed is asked when the metrics are; false: not known.
	computed func(*series) (float64, bool)
	// presence is for what is also there while the cache sleeps.
	presence func(*presence) float64
}

// specs is the list.
var specs = slices.Concat(stateSpecs, eventSpecs, watcherSpecs, readSpecs, storageSpecs)

// Bounds of classic buckets, in seconds.
var (
	waitBuckets    = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 3, 10}
	requestBuckets = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 3, 10, 30}
	stageBuckets   = []float64{0.000005, 0.00001, 0.000025, 0.0001, 0.00025, 0.001, 0.0025, 0.01, 0.1, 1, 10}
	readBuckets    = []float64{0.00001, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 3, 10}
)
