// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/metrics"
)

// effect is one call on a Resource and all that it changes on a fresh
// registry: series, without group and resource, to value. A histogram is
// its _count and _sum.
type effect struct {
	method string
	call   func(*metrics.Resource)
	want   map[string]float64
}

var effects = []effect{
	{"FellAsleep", func(r *metrics.Resource) { r.FellAsleep() }, map[string]float64{"asleep": 1}},
	{"WokenUp", func(r *metrics.Resource) { r.WokenUp() }, map[string]float64{"woken_up_total": 1}},
	{"SetObjects", func(r *metrics.Resource) { r.SetObjects(7) }, map[string]float64{"objects": 7}},
	{"SetResourceVersion", func(r *metrics.Resource) { r.SetResourceVersion(1234) }, map[string]float64{"resource_version": 1234}},
	{"SetWindow", func(r *metrics.Resource) { r.SetWindow(3, 4096) }, map[string]float64{"window_events": 3, "window_bytes": 4096}},
	{"SetWatchers", func(r *metrics.Resource) { r.SetWatchers(5, 2) }, map[string]float64{`watchers{state="live"}`: 5, `watchers{state="parked"}`: 2}},
	{"Event", func(r *metrics.Resource) { r.Event("ADDED") }, map[string]float64{`events_total{type="ADDED"}`: 1}},
	{"Event", func(r *metrics.Resource) { r.Event("MODIFIED") }, map[string]float64{`events_total{type="MODIFIED"}`: 1}},
	{"Event", func(r *metrics.Resource) { r.Event("DELETED") }, map[string]float64{`events_total{type="DELETED"}`: 1}},
	{"Event", func(r *metrics.Resource) { r.Event("BOOKMARK") }, map[string]float64{`events_total{type="BOOKMARK"}`: 1}},
	{"Event", func(r *metrics.Resource) { r.Event("SURPRISE") }, map[string]float64{`events_total{type="other"}`: 1}},
	{"Candidates", func(r *metrics.Resource) { r.Candidates(40) }, map[string]float64{"dispatch_candidates_total": 40}},
	{"Initial", func(r *metrics.Resource) { r.Initial(200) }, map[string]float64{"initial_events_total": 200}},
	{"Expired", func(r *metrics.Resource) { r.Expired() }, map[string]float64{"watchers_expired_total": 1}},
	{"Delivered", func(r *metrics.Resource) { r.Delivered(100) }, map[string]float64{"delivered_events_total": 100}},
	{"Read", func(r *metrics.Resource) { r.Read("get", "latest") }, map[string]float64{`reads_total{decision="latest",verb="get"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read("list", "exact") }, map[string]float64{`reads_total{decision="exact",verb="list"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read("list", "continue") }, map[string]float64{`reads_total{decision="continue",verb="list"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read("list", "consistent") }, map[string]float64{`reads_total{decision="consistent",verb="list"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read("get", "delegate") }, map[string]float64{`reads_total{decision="delegate",verb="get"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read("get", "refuse") }, map[string]float64{`reads_total{decision="refuse",verb="get"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read("get", "guess") }, map[string]float64{`reads_total{decision="other",verb="other"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read("peek", "latest") }, map[string]float64{`reads_total{decision="other",verb="other"}`: 1}},
	{"StaleRead", func(r *metrics.Resource) { r.StaleRead("storage") }, map[string]float64{`stale_reads_total{answer="storage"}`: 1}},
	{"StaleRead", func(r *metrics.Resource) { r.StaleRead("refused") }, map[string]float64{`stale_reads_total{answer="refused"}`: 1}},
	{"StaleRead", func(r *metrics.Resource) { r.StaleRead("forgotten") }, map[string]float64{`stale_reads_total{answer="other"}`: 1}},
	{"Listed", func(r *metrics.Resource) { r.Listed(9, 4) }, map[string]float64{"list_evaluated_objects_total": 9, "list_returned_objects_total": 4}},
	{"ConsistencyCheck", func(r *metrics.Resource) { r.ConsistencyCheck("passed") }, map[string]float64{`consistency_checks_total{result="passed"}`: 1}},
	{"ConsistencyCheck", func(r *metrics.Resource) { r.ConsistencyCheck("failed") }, map[string]float64{`consistency_checks_total{result="failed"}`: 1}},
	{"ConsistencyCheck", func(r *metrics.Resource) { r.ConsistencyCheck("error") }, map[string]float64{`consistency_checks_total{result="error"}`: 1}},
	{"ConsistencyCheck", func(r *metrics.Resource) { r.ConsistencyCheck("maybe") }, map[string]float64{`consistency_checks_total{result="other"}`: 1}},
	{"Parked", func(r *metrics.Resource) { r.Parked() }, map[string]float64{"watchers_parked_total": 1}},
	{"Resumed", func(r *metrics.Resource) { r.Resumed() }, map[string]float64{"watchers_resumed_total": 1}},
	{"Ended", func(r *metrics.Resource) { r.Ended("stopped") }, map[string]float64{`watchers_ended_total{reason="stopped"}`: 1}},
	{"Ended", func(r *metrics.Resource) { r.Ended("deadline") }, map[string]float64{`watchers_ended_total{reason="deadline"}`: 1}},
	{"Ended", func(r *metrics.Resource) { r.Ended("expired") }, map[string]float64{`watchers_ended_total{reason="expired"}`: 1}},
	{"Ended", func(r *metrics.Resource) { r.Ended("relist") }, map[string]float64{`watchers_ended_total{reason="relist"}`: 1}},
	{"Ended", func(r *metrics.Resource) { r.Ended("failed") }, map[string]float64{`watchers_ended_total{reason="failed"}`: 1}},
	{"Ended", func(r *metrics.Resource) { r.Ended("parked") }, map[string]float64{`watchers_ended_total{reason="parked"}`: 1}},
	{"Ended", func(r *metrics.Resource) { r.Ended("shutdown") }, map[string]float64{`watchers_ended_total{reason="shutdown"}`: 1}},
	{"Ended", func(r *metrics.Resource) { r.Ended("boredom") }, map[string]float64{`watchers_ended_total{reason="other"}`: 1}},
	{"Relist", func(r *metrics.Resource) { r.Relist() }, map[string]float64{"relists_total": 1}},
	{"WatchBroken", func(r *metrics.Resource) { r.WatchBroken() }, map[string]float64{"storage_watches_broken_total": 1}},
	{"Undeliverable", func(r *metrics.Resource) { r.Undeliverable() }, map[string]float64{"storage_undeliverable_total": 1}},
	{"VersionRequest", func(r *metrics.Resource) { r.VersionRequest() }, map[string]float64{"version_requests_total": 1}},
	{"ReadWait", func(r *metrics.Resource) { r.ReadWait(2 * time.Second) }, map[string]float64{"read_wait_seconds_count": 1, "read_wait_seconds_sum": 2}},
}

func TestEachMethodChangesItsOwnMetricAlone(t *testing.T) {
	for i, e := range effects {
		t.Run(fmt.Sprintf("%02d_%s", i, e.method), func(t *testing.T) {
			reg := prometheus.NewRegistry()
			m, err := metrics.New(reg)
			require.NoError(t, err)
			r, neighbour := m.For("fleet.example.com", "devices"), m.For("", "pods")
			require.NotNil(t, neighbour)
			before := gather(t, reg)

			e.call(r)

			changed := map[string]float64{}
			for series, v := range gather(t, reg) {
				if v != before[series] {
					changed[series] = v
				}
			}
			want := map[string]float64{}
			for series, v := range e.want {
				want["watchcache_"+series+" of fleet.example.com/devices"] = v
			}
			require.Equal(t, want, changed)
		})
	}
}

// The table above is worth nothing for a method that is not in it.
func TestEveryMethodIsInTheTable(t *testing.T) {
	tested := map[string]bool{"Forget": true}
	for _, e := range effects {
		tested[e.method] = true
	}
	typ := reflect.TypeFor[*metrics.Resource]()
	for i := range typ.NumMethod() {
		require.True(t, tested[typ.Method(i).Name], "Resource.%s has no row in effects", typ.Method(i).Name)
	}
}

// A metric that no method moves is not exported.
func TestEveryMetricIsMovedByAMethod(t *testing.T) {
	moved := map[string]bool{}
	for _, e := range effects {
		for series := range e.want {
			moved["watchcache_"+series] = true
		}
	}
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	require.NoError(t, err)
	m.For("", "pods")
	for series := range gather(t, reg) {
		name, _, _ := strings.Cut(series, " of ")
		family, _, _ := strings.Cut(name, "{")
		known := slices.ContainsFunc(slices.Collect(maps.Keys(moved)), func(s string) bool {
			return s == family || strings.HasPrefix(s, family+"{")
		})
		require.True(t, known, "no row of effects moves %s", name)
	}
}

func TestNilIsSafe(t *testing.T) {
	var none *metrics.Metrics
	dropped := none.For("fleet.example.com", "devices")
	require.NotNil(t, dropped)
	for _, r := range []*metrics.Resource{nil, dropped, {}} {
		for _, e := range effects {
			require.NotPanics(t, func() { e.call(r) }, e.method)
		}
		require.NotPanics(t, r.Forget)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	m, err := metrics.New(prometheus.NewRegistry())
	require.NoError(t, err)
	for name, r := range map[string]*metrics.Resource{
		"counting": m.For("fleet.example.com", "devices"),
		"dropping": (*metrics.Metrics)(nil).For("fleet.example.com", "devices"),
	} {
		for _, e := range effects {
			if got := testing.AllocsPerRun(100, func() { e.call(r) }); got != 0 {
				t.Errorf("%s: %s allocates %v times a call", name, e.method, got)
			}
		}
	}
}

func TestLint(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	require.NoError(t, err)
	r := m.For("fleet.example.com", "devices")
	for _, e := range effects {
		e.call(r)
	}
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
	n, err := testutil.GatherAndCount(reg)
	require.NoError(t, err)
	require.NotZero(t, n, "nothing was linted")
}

func TestOneRegistryTwice(t *testing.T) {
	reg := prometheus.NewRegistry()
	first, err := metrics.New(reg)
	require.NoError(t, err)
	second, err := metrics.New(reg)
	require.NoError(t, err)
	a, b := first.For("", "pods"), second.For("", "pods")
	a.Relist()
	b.Relist()
	require.EqualValues(t, 2, gather(t, reg)["watchcache_relists_total of /pods"])

	a.Forget()
	require.Contains(t, gather(t, reg), "watchcache_relists_total of /pods", "the second handle is in use")
	b.Forget()
	require.Empty(t, gather(t, reg))
}

func TestForeignCollectors(t *testing.T) {
	labels := []string{"group", "resource"}
	for name, foreign := range map[string]prometheus.Collector{
		"same name and labels":  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "watchcache_objects", Help: "Objects that the cache holds."}, labels),
		"same name, other help": prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "watchcache_objects", Help: "Theirs."}, labels),
		"same name, no labels":  prometheus.NewGauge(prometheus.GaugeOpts{Name: "watchcache_objects", Help: "Theirs."}),
	} {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			reg.MustRegister(foreign)
			before := gather(t, reg)
			m, err := metrics.New(reg)
			require.ErrorContains(t, err, "watchcache_objects")
			require.ErrorContains(t, err, "metrics: ")
			require.Nil(t, m)
			require.Equal(t, before, gather(t, reg), "something of ours was left behind")
		})
	}
	t.Run("all the names", func(t *testing.T) {
		ours := prometheus.NewRegistry()
		_, err := metrics.New(recorder{ours, func(c prometheus.Collector) prometheus.Collector { return impostor{c} }})
		require.NoError(t, err)
		_, err = metrics.New(ours)
		require.ErrorContains(t, err, "impostor")
	})
	t.Run("no registry", func(t *testing.T) {
		_, err := metrics.New(nil)
		require.ErrorContains(t, err, "registerer")
	})
}

// impostor describes what another collector describes, and is not it.
type impostor struct{ prometheus.Collector }

// recorder registers something else than it was given.
type recorder struct {
	prometheus.Registerer
	swap func(prometheus.Collector) prometheus.Collector
}

func (r recorder) Register(c prometheus.Collector) error { return r.Registerer.Register(r.swap(c)) }

func TestForget(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	require.NoError(t, err)
	stays := m.For("", "pods")
	alone := gather(t, reg)
	r := m.For("fleet.example.com", "devices")
	for _, e := range effects {
		e.call(r)
	}
	require.Greater(t, len(gather(t, reg)), len(alone))

	r.Forget()
	require.Equal(t, alone, gather(t, reg))
	for _, e := range effects {
		e.call(r)
	}
	r.Forget()
	require.Equal(t, alone, gather(t, reg), "a forgotten handle still counts")

	again := m.For("fleet.example.com", "devices")
	require.Zero(t, gather(t, reg)["watchcache_relists_total of fleet.example.com/devices"])
	again.Relist()
	stays.Relist()
	require.EqualValues(t, 1, gather(t, reg)["watchcache_relists_total of fleet.example.com/devices"])
	require.EqualValues(t, 1, gather(t, reg)["watchcache_relists_total of /pods"])
}

// The race detector is the judge here, and the counts at the end.
func TestConcurrentUse(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	require.NoError(t, err)
	held := m.For("", "pods")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				r := m.For("", "pods")
				for _, e := range effects {
					e.call(r)
				}
				_, _ = reg.Gather()
				r.Forget()
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 8*50, gather(t, reg)["watchcache_relists_total of /pods"])
	held.Forget()
	require.Empty(t, gather(t, reg))
}

// gather gives every exported series as name{own labels} of group/resource,
// with its value.
func gather(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var own []string
			id := map[string]string{}
			for _, l := range m.GetLabel() {
				if l.GetName() == "group" || l.GetName() == "resource" {
					id[l.GetName()] = l.GetValue()
					continue
				}
				own = append(own, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name, labels := f.GetName(), ""
			if len(own) > 0 {
				labels = "{" + strings.Join(own, ",") + "}"
			}
			of := " of " + id["group"] + "/" + id["resource"]
			switch {
			case m.GetGauge() != nil:
				out[name+labels+of] = m.GetGauge().GetValue()
			case m.GetCounter() != nil:
				out[name+labels+of] = m.GetCounter().GetValue()
			case m.GetHistogram() != nil:
				out[name+"_count"+labels+of] = float64(m.GetHistogram().GetSampleCount())
				out[name+"_sum"+labels+of] = m.GetHistogram().GetSampleSum()
			}
		}
	}
	return out
}

// A cache that sleeps exports that it does, and how often it was woken up, and
// nothing else; awake it exports everything, from zero.
func TestSleepingCache(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	require.NoError(t, err)
	neighbour := m.For("", "pods")
	r := m.ForAsleep("fleet.example.com", "devices")
	own := func() map[string]float64 {
		out := map[string]float64{}
		for series, v := range gather(t, reg) {
			if strings.HasSuffix(series, " of fleet.example.com/devices") {
				out[strings.TrimSuffix(strings.TrimPrefix(series, "watchcache_"), " of fleet.example.com/devices")] = v
			}
		}
		return out
	}
	r.Parked()
	require.Equal(t, map[string]float64{"asleep": 1, "woken_up_total": 0}, own())
	for times := 1; times <= 2; times++ {
		r.WokenUp()
		awake := own()
		require.Equal(t, float64(times), awake["woken_up_total"])
		require.Zero(t, awake["asleep"])
		require.Contains(t, awake, "watchers_parked_total")
		require.Zero(t, awake["watchers_parked_total"])
		r.Parked()
		require.Equal(t, 1.0, own()["watchers_parked_total"])
		r.FellAsleep()
		r.FellAsleep()
		r.Parked()
		require.Equal(t, map[string]float64{"asleep": 1, "woken_up_total": float64(times)}, own())
	}
	r.Forget()
	require.Empty(t, own())
	r.WokenUp()
	require.Empty(t, own())
	neighbour.Parked()
	require.NotEmpty(t, gather(t, reg), "the neighbour's are still there")
}
