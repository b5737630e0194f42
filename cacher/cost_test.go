// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
)

// counted returns a configuration change that counts, and a function that
// reads the sum of a metric over its labels.
func counted(t testing.TB) (func(*cacher.Config), func(name string) float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry)
	require.NoError(t, err)
	return func(c *cacher.Config) { c.Metrics = m }, func(name string) (sum float64) {
		t.Helper()
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() != "watchcache_"+name {
				continue
			}
			for _, metric := range family.GetMetric() {
				sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			}
		}
		return sum
	}
}

// A watcher at rest costs no goroutine.
func TestIdleWatchersHaveNoGoroutines(t *testing.T) {
	const watchers = 10_000
	store := newStore()
	before := runtime.NumGoroutine()
	c := start(t, store)
	watches := open(t, c, store, watchers)
	live := func() (n int) {
		for _, w := range c.Status().Watchers {
			if !w.Parked {
				n++
			}
		}
		return n
	}
	until(t, "all watchers are live", func() bool { return live() == watchers })
	until(t, "their goroutines end", func() bool { return runtime.NumGoroutine()-before <= 20 })
	for _, w := range watches {
		w.Stop()
	}
	until(t, "all watchers are forgotten", func() bool { return len(c.Status().Watchers) == 0 })
}

// An event is evaluated for the groups that it may affect, however many
// watchers there are: at most once for each selector that it matches, plus
// once for each that names nothing to look it up by.
func TestCandidatesFollowMatches(t *testing.T) {
	const watchers, residual = 2_000, 3
	store := newStore()
	count, sum := counted(t)
	c := start(t, store, count, func(c *cacher.Config) { c.IndexerFuncs, c.WatchBuffer = poddata.Triggers(), 100 })
	selectors := []func(i int) (label, field, key string, single bool){
		func(i int) (string, string, string, bool) { return fmt.Sprintf("app=app-%d", i), "", "/pods/", false },
		func(i int) (string, string, string, bool) {
			return fmt.Sprintf("app in (app-%d,other-%d)", i, i), "", "/pods/", false
		},
		func(i int) (string, string, string, bool) {
			return "", fmt.Sprintf("spec.nodeName=n-%d", i), "/pods/", false
		},
		func(i int) (string, string, string, bool) {
			return "", fmt.Sprintf("status.phase=p-%d", i), "/pods/", false
		},
		func(i int) (string, string, string, bool) {
			return "", fmt.Sprintf("metadata.name=pod-%d", i), "/pods/", false
		},
		func(i int) (string, string, string, bool) { return "", "", fmt.Sprintf("/pods/ns-%d/", i), false },
		func(i int) (string, string, string, bool) {
			return "", "", fmt.Sprintf("/pods/ns-%d/pod-%d", i, i), true
		},
		func(i int) (string, string, string, bool) {
			return "", fmt.Sprintf("metadata.namespace=ns-%d", i), "/pods/", false
		},
	}
	for i := range watchers {
		label, field, key, single := selectors[i%len(selectors)](i / len(selectors))
		watchPods(t, c, key, "1", selecting(label, field), func(o *storage.ListOptions) { o.Recursive = !single })
	}
	for i := range residual {
		watchPods(t, c, "/pods/", "1", selecting(fmt.Sprintf("app!=none-%d", i), ""))
	}
	until(t, "all watchers are live", func() bool {
		for _, w := range c.Status().Watchers {
			if w.Parked {
				return false
			}
		}
		return true
	})

	const events = 50
	for i := range events {
		put(store, poddata.Pod(fmt.Sprintf("ns-%d/pod-%d", i, i), fmt.Sprintf("app=app-%d", i),
			fmt.Sprintf("spec.nodeName=n-%d", i), fmt.Sprintf("status.phase=p-%d", i)))
	}
	until(t, "all is delivered", func() bool {
		return sum("delivered_events_total") == events*float64(len(selectors)+residual)
	})
	got, want := sum("dispatch_evaluations_total"), events*float64(len(selectors)+residual)
	assert.Equal(t, want, got, "as many groups are evaluated for %d events as match", events)
}
