// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/metrics"
)

// A list makes the cache ready while a read finds out that its storage has gone back:
// whichever comes last, the metric shows it.
func TestReadinessAndItsMetricAgree(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m, err := metrics.New(registry)
	require.NoError(t, err)
	r := newReadiness(clock.RealClock{}, m.For("", "pods"))
	for range 1000 {
		var writers sync.WaitGroup
		for _, ready := range []bool{true, false} {
			for range 4 {
				writers.Go(func() { r.set(ready) })
			}
		}
		writers.Wait()
		families, err := registry.Gather()
		require.NoError(t, err)
		shown := -1.0
		for _, f := range families {
			if f.GetName() == string(metrics.NameReady) {
				shown = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		want := 0.0
		if r.ready() {
			want = 1
		}
		require.Equal(t, want, shown, "watchcache_ready")
	}
}
