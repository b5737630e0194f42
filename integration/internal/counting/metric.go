// SPDX-License-Identifier: Apache-2.0

package counting

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// Metric is the sum of one of the cache's counters, whose name is given without
// its prefix, over the series that have all the label values.
func Metric(t *testing.T, from prometheus.Gatherer, name string, labels ...string) (sum float64) {
	t.Helper()
	families, err := from.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "watchcache_"+name {
			continue
		}
		for _, series := range family.GetMetric() {
			missing := slices.Clone(labels)
			for _, label := range series.GetLabel() {
				missing = slices.DeleteFunc(missing, func(value string) bool { return value == label.GetValue() })
			}
			if len(missing) == 0 {
				sum += series.GetCounter().GetValue()
			}
		}
	}
	return sum
}
