// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	shipped "k8s.io/apiserver/pkg/storage/cacher/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/kube-watchcache/watchcache/metrics"
)

// registerShipped does what a server does when it serves /metrics.
func registerShipped() {
	shipped.Register()
	registerShippedStorage()
}

// shippedSeries returns the series that the process shows of a group on /metrics, as
// name{labels but group}, with their values. A histogram is its count.
func shippedSeries(t testing.TB, group string) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			found, labels := false, []string{}
			for _, l := range m.GetLabel() {
				if l.GetName() == "group" {
					found = l.GetValue() == group
					continue
				}
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			if found {
				sort.Strings(labels)
				out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return out
}

// mirrored returns the handles of a cache, on a registry of its own, that is
// mirrored.
func mirrored(t testing.TB, group string) *metrics.Resource {
	t.Helper()
	m, err := metrics.New(prometheus.NewRegistry())
	require.NoError(t, err)
	r := m.For(group, "devices")
	r.Mirror()
	return r
}

// Counts from before a server has registered the shipped metrics are not lost.
// This is the first test of those that register them.
func TestShippedMetricsAreRegisteredLate(t *testing.T) {
	r := mirrored(t, "late.example.com")
	defer r.Forget()
	r.Event(metrics.EventAdded)
	r.PassOn()
	registerShipped()
	require.Empty(t, shippedSeries(t, "late.example.com"))
	r.PassOn()
	series := shippedSeries(t, "late.example.com")
	require.EqualValues(t, 1, series[`apiserver_watch_cache_events_received_total{resource="devices"}`])
}

// mirroredEffects are the methods of Resource, and what they change in the metrics
// of the shipped cacher.
var mirroredEffects = []struct {
	call func(*metrics.Resource)
	want map[string]float64 // without apiserver_ and the label resource
}{
	{func(r *metrics.Resource) {
		r.Event(metrics.EventAdded)
		r.Event(metrics.EventModified)
		r.Event(metrics.EventDeleted)
	}, map[string]float64{"watch_cache_events_received_total": 3}},
	{func(r *metrics.Resource) { r.Event(metrics.EventBookmark) }, map[string]float64{"watch_cache_events_dispatched_total": 1}},
	{func(r *metrics.Resource) { r.Dispatched(40, 10, 5) }, map[string]float64{"watch_cache_events_dispatched_total": 1}},
	{func(r *metrics.Resource) { r.Processed(7) }, map[string]float64{"init_events_total": 7}},
	{func(r *metrics.Resource) {
		for reason := metrics.EndReason(0); reason <= metrics.EndShutdown; reason++ {
			r.Ended(reason)
		}
	}, map[string]float64{"terminated_watchers_total": 3}},
	{func(r *metrics.Resource) { r.SetResourceVersion(9_123_456_789_012_345) }, map[string]float64{"watch_cache_resource_version": 123_456_789_012_345}},
	{func(r *metrics.Resource) { r.Relist(metrics.RelistBehind); r.Filled(time.Second) }, map[string]float64{
		"watch_cache_initializations_total": 1, "watch_cache_initialization_duration_seconds": 1,
	}},
	{func(r *metrics.Resource) { r.FillFailed() }, map[string]float64{"watch_cache_initialization_errors_total": 1}},
	{func(r *metrics.Resource) { r.ReadWait(time.Second) }, map[string]float64{"watch_cache_read_wait_seconds": 1}},
	{func(r *metrics.Resource) { r.Read(metrics.VerbList, metrics.DecisionConsistent) }, map[string]float64{`watch_cache_consistent_read_total fallback="false",success="true"`: 1}},
	{func(r *metrics.Resource) { r.Read(metrics.VerbGet, metrics.DecisionConsistent) }, map[string]float64{}},
	{func(r *metrics.Resource) { r.ConsistentListElsewhere(metrics.FallbackStorage, nil) }, map[string]float64{`watch_cache_consistent_read_total fallback="true",success="true"`: 1}},
	{func(r *metrics.Resource) { r.ConsistentListElsewhere(metrics.FallbackStorage, errAny) }, map[string]float64{`watch_cache_consistent_read_total fallback="true",success="false"`: 1}},
	{func(r *metrics.Resource) { r.ConsistentListElsewhere(metrics.FallbackRefused, errAny) }, map[string]float64{`watch_cache_consistent_read_total fallback="skipped",success="false"`: 1}},
	{func(r *metrics.Resource) { r.ConsistentListElsewhere(metrics.FallbackNone, errAny) }, map[string]float64{`watch_cache_consistent_read_total fallback="false",success="false"`: 1}},
	{func(r *metrics.Resource) { r.ConsistentListElsewhere(metrics.ListFallback(200), errAny) }, map[string]float64{`watch_cache_consistent_read_total fallback="false",success="false"`: 1}},
	{func(r *metrics.Resource) { r.ConsistencyCheck(metrics.CheckPassed) }, map[string]float64{`storage_consistency_checks_total status="success"`: 1}},
	{func(r *metrics.Resource) { r.ConsistencyCheck(metrics.CheckFailed) }, map[string]float64{`storage_consistency_checks_total status="failure"`: 1}},
	{func(r *metrics.Resource) { r.ConsistencyCheck(metrics.CheckError) }, map[string]float64{`storage_consistency_checks_total status="error"`: 1}},
	{func(r *metrics.Resource) {
		for range 3 {
			r.Listed(10, 4)
			r.ReadByIndex("f:spec.node", 10)
		}
		r.Listed(5, 5)
		r.ReadByIndex(metrics.ByKeys, 5)
	}, map[string]float64{
		`cache_list_total index="f:spec.node"`: 3, `cache_list_fetched_objects_total index="f:spec.node"`: 30,
		`cache_list_total index=""`: 1, `cache_list_fetched_objects_total index=""`: 5,
		`cache_list_returned_objects_total`:                                           17,
		`storage_list_total storage="watchcache",index=""`:                            1,
		`storage_list_total storage="watchcache",index="f:spec.node"`:                 3,
		`storage_list_fetched_objects_total storage="watchcache",index=""`:            5,
		`storage_list_fetched_objects_total storage="watchcache",index="f:spec.node"`: 30,
		`storage_list_returned_objects_total storage="watchcache"`:                    17,
		`storage_list_evaluated_objects_total storage="watchcache"`:                   0,
	}},
	{func(r *metrics.Resource) {
		for _, slots := range []int{64, 512, 256, 256} {
			r.SetWindowSlots(slots)
		}
	}, map[string]float64{"watch_cache_capacity": 256, "watch_cache_capacity_increase_total": 3, "watch_cache_capacity_decrease_total": 1}},
}

var errAny = errors.New("any")

// Each method moves what COMPATIBILITY.md says that it does, and no more, however
// often it is passed on.
func TestShippedMetrics(t *testing.T) {
	registerShipped()
	for i, e := range mirroredEffects {
		group := fmt.Sprintf("effect-%d.example.com", i)
		r := mirrored(t, group)
		r.DeclareIndexes("f:spec.node")
		r.PassOn()
		e.call(r)
		r.PassOn()
		r.PassOn()
		want := map[string]float64{"watch_cache_capacity{resource=\"devices\"}": 0}
		for series, n := range e.want {
			name, labels, _ := strings.Cut(series, " ")
			if !shippedHas(name) {
				continue
			}
			all := []string{`resource="devices"`}
			if labels != "" {
				all = append(all, strings.Split(labels, ",")...)
			}
			sort.Strings(all)
			if !strings.HasPrefix(name, "watch_cache_capacity") { // which have no namespace
				name = "apiserver_" + name
			}
			want[name+"{"+strings.Join(all, ",")+"}"] = n
		}
		require.Equal(t, want, shippedSeries(t, group), "row %d", i)
		r.Forget()
	}
}

// Caches of one resource add up, and a cache that stops takes nothing from the counters.
// With the last one the gauges are gone, or 0 where they can't be removed.
func TestShippedMetricsOfSeveralCaches(t *testing.T) {
	registerShipped()
	const group = "several.example.com"
	m, err := metrics.New(prometheus.NewRegistry())
	require.NoError(t, err)
	first, second, third := m.For(group, "devices"), m.For(group, "devices"), m.For(group, "devices")
	all := []*metrics.Resource{first, second, third}
	for i, r := range all {
		r.Mirror()
		r.Event(metrics.EventAdded)
		r.SetWindowSlots(64 << i)
		r.SetResourceVersion(7)
		r.PassOn()
		r.PassOn()
	}
	const received, capacity, version = `apiserver_watch_cache_events_received_total{resource="devices"}`, `watch_cache_capacity{resource="devices"}`, `apiserver_watch_cache_resource_version{resource="devices"}`
	expect := func(events, slots, rv float64) {
		t.Helper()
		series := shippedSeries(t, group)
		require.Equal(t, events, series[received])
		require.Equal(t, rv, series[version])
		if slots == 0 {
			require.NotContains(t, series, capacity)
		} else {
			require.Equal(t, slots, series[capacity])
		}
		require.NotContains(t, series, `watch_cache_capacity_increase_total{resource="devices"}`, "caches of several sizes fight")
	}
	expect(3, 64+128+256, 7)
	second.Event(metrics.EventDeleted) // not passed on before it stops
	second.Forget()
	first.PassOn()
	expect(4, 64+256, 7)
	third.Event(metrics.EventDeleted)
	third.FellAsleep()
	first.PassOn()
	expect(5, 64, 7)
	first.Forget()
	expect(5, 0, 0)
	third.WokenUp()
	third.Event(metrics.EventAdded)
	third.SetWindowSlots(64)
	third.PassOn()
	expect(6, 64, 0)
	third.Forget()
	expect(6, 0, 0)
	third.PassOn()
	third.Event(metrics.EventAdded)
	expect(6, 0, 0)
}

// Nothing of a cache that is not mirrored is passed on.
func TestShippedMetricsAreLeftAlone(t *testing.T) {
	registerShipped()
	m, err := metrics.New(prometheus.NewRegistry())
	require.NoError(t, err)
	r := m.For("alone.example.com", "devices")
	for _, e := range mirroredEffects {
		e.call(r)
	}
	r.PassOn()
	r.Forget()
	require.Empty(t, shippedSeries(t, "alone.example.com"))
}

// A reset of the metrics of the process takes what was counted, and no more.
func TestShippedMetricsAreReset(t *testing.T) {
	registerShipped()
	const group = "reset.example.com"
	r := mirrored(t, group)
	defer r.Forget()
	r.SetWindowSlots(64)
	r.ReadWait(time.Second)
	r.PassOn()
	shipped.WatchCacheReadWait.Reset()
	shipped.WatchCacheCapacity.Reset()
	require.Empty(t, shippedSeries(t, group))
	r.PassOn()
	r.ReadWait(time.Second)
	require.Equal(t, map[string]float64{
		`watch_cache_capacity{resource="devices"}`: 64, `apiserver_watch_cache_read_wait_seconds{resource="devices"}`: 1,
	}, shippedSeries(t, group))
}

// The way of events and reads allocates nothing for the shipped metrics.
func TestAllocationsOfMirroredMetrics(t *testing.T) {
	registerShipped()
	r := mirrored(t, "allocations.example.com")
	defer r.Forget()
	r.DeclareIndexes("f:spec.node")
	calls := func() {
		r.Event(metrics.EventAdded)
		r.Dispatched(4, 2, 1)
		r.Processed(3)
		r.Read(metrics.VerbList, metrics.DecisionConsistent)
		r.Listed(3, 2)
		r.ReadByIndex("f:spec.node", 3)
		r.ConsistentListElsewhere(metrics.FallbackRefused, errAny)
		r.SetWindowSlots(64)
	}
	calls()
	require.Zero(t, testing.AllocsPerRun(100, calls))
}

// The race detector is the judge here, and the counts at the end.
func TestShippedMetricsAtTheSameTime(t *testing.T) {
	registerShipped()
	const group, times = "race.example.com", 5
	m, err := metrics.New(prometheus.NewRegistry())
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range times {
				r := m.For(group, "devices")
				r.Mirror()
				r.DeclareIndexes("f:spec.node")
				for _, e := range mirroredEffects {
					e.call(r)
				}
				r.PassOn()
				_, _ = legacyregistry.DefaultGatherer.Gather()
				r.Forget()
			}
		})
	}
	wg.Wait()
	series := shippedSeries(t, group)
	require.EqualValues(t, 8*times*3, series[`apiserver_watch_cache_events_received_total{resource="devices"}`])
	require.EqualValues(t, 8*times*3, series[`apiserver_terminated_watchers_total{resource="devices"}`])
	require.EqualValues(t, 8*times*17, series[`apiserver_cache_list_returned_objects_total{resource="devices"}`])
	require.EqualValues(t, 8*times, series[`apiserver_watch_cache_read_wait_seconds{resource="devices"}`])
	require.NotContains(t, series, `watch_cache_capacity{resource="devices"}`)
}
