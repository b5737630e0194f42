// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
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

var plainEffects = []effect{
	{"FellAsleep", func(r *metrics.Resource) { r.FellAsleep() }, map[string]float64{"asleep": 1}},
	{"WokenUp", func(r *metrics.Resource) { r.WokenUp() }, map[string]float64{"woken_up_total": 1}},
	{"SetObjects", func(r *metrics.Resource) { r.SetObjects(7) }, map[string]float64{"objects": 7}},
	{"SetResourceVersion", func(r *metrics.Resource) { r.SetResourceVersion(1234) }, map[string]float64{"resource_version": 1234}},
	{"SetOldestResourceVersion", func(r *metrics.Resource) { r.SetOldestResourceVersion(1200) }, map[string]float64{"oldest_resource_version": 1200}},
	{"SetStorageResourceVersion", func(r *metrics.Resource) { r.SetStorageResourceVersion(1300) }, map[string]float64{"storage_resource_version": 1300}},
	{"SetWindow", func(r *metrics.Resource) { r.SetWindow(3, 90*time.Second) }, map[string]float64{"window_events": 3, "window_seconds": 90}},
	{"WindowCut", func(r *metrics.Resource) { r.WindowCut(8) }, map[string]float64{"window_cut_events_total": 8}},
	{"Ready", func(r *metrics.Resource) { r.Ready(true) }, map[string]float64{"ready": 1}},
	{"SetWatcherLag", func(r *metrics.Resource) { r.SetWatcherLag(metrics.WatcherWorst, 9, 2*time.Second) }, map[string]float64{`watcher_lag_events{watcher="worst"}`: 9, `watcher_lag_seconds{watcher="worst"}`: 2}},
	{"SetWatcherLag", func(r *metrics.Resource) { r.SetWatcherLag(metrics.WatcherMedian, 4, time.Second) }, map[string]float64{`watcher_lag_events{watcher="median"}`: 4, `watcher_lag_seconds{watcher="median"}`: 1}},
	{"SetInitialSnapshots", func(r *metrics.Resource) { r.SetInitialSnapshots(3) }, map[string]float64{"initial_snapshots": 3}},
	{"Dispatched", func(r *metrics.Resource) { r.Dispatched(40, 10, 5) }, map[string]float64{
		"dispatch_candidates_total": 40, "dispatch_evaluations_total": 10, "dispatch_evaluations_saved_total": 30, "dispatch_matches_total": 5,
	}},
	{"DispatchLag", func(r *metrics.Resource) { r.DispatchLag(2 * time.Second) }, histogramOf("dispatch_lag_seconds", "", 2)},
	{"Encoded", func(r *metrics.Resource) { r.Encoded(false) }, map[string]float64{"encodings_total": 1}},
	{"Encoded", func(r *metrics.Resource) { r.Encoded(true) }, map[string]float64{"encodings_shared_total": 1}},
	{"Initial", func(r *metrics.Resource) { r.Initial(200) }, map[string]float64{"initial_events_total": 200}},
	{"BeyondWindow", func(r *metrics.Resource) { r.BeyondWindow() }, map[string]float64{"watchers_beyond_window_total": 1}},
	{"Expired", func(r *metrics.Resource) { r.Expired() }, map[string]float64{"watchers_expired_total": 1}},
	{"Delivered", func(r *metrics.Resource) { r.Delivered(100) }, map[string]float64{"delivered_events_total": 100}},
	{"Read", func(r *metrics.Resource) { r.Read(metrics.VerbGet, metrics.DecisionLatest) }, map[string]float64{`reads_total{decision="latest",verb="get"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read(metrics.VerbList, metrics.DecisionExact) }, map[string]float64{`reads_total{decision="exact",verb="list"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read(metrics.VerbList, metrics.DecisionContinue) }, map[string]float64{`reads_total{decision="continue",verb="list"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read(metrics.VerbList, metrics.DecisionConsistent) }, map[string]float64{`reads_total{decision="consistent",verb="list"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read(metrics.VerbGet, metrics.DecisionDelegate) }, map[string]float64{`reads_total{decision="delegate",verb="get"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read(metrics.VerbGet, metrics.DecisionRefuse) }, map[string]float64{`reads_total{decision="refuse",verb="get"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read(metrics.VerbGet, metrics.Decision(200)) }, map[string]float64{`reads_total{decision="other",verb="other"}`: 1}},
	{"Read", func(r *metrics.Resource) { r.Read(metrics.Verb(200), metrics.DecisionLatest) }, map[string]float64{`reads_total{decision="other",verb="other"}`: 1}},
	{"ReadTook", func(r *metrics.Resource) { r.ReadTook(metrics.VerbList, metrics.DecisionExact, time.Second) }, histogramOf("read_duration_seconds", `{decision="exact",verb="list"}`, 1)},
	{"ReadTook", func(r *metrics.Resource) { r.ReadTook(metrics.VerbGet, metrics.DecisionRefuse, time.Second) }, histogramOf("read_duration_seconds", `{decision="refuse",verb="get"}`, 1)},
	{"ReadTook", func(r *metrics.Resource) { r.ReadTook(metrics.VerbGet, metrics.Decision(200), time.Second) }, histogramOf("read_duration_seconds", `{decision="other",verb="other"}`, 1)},
	{"ReadByIndex", func(r *metrics.Resource) { r.ReadByIndex("f:spec.node", 3) }, map[string]float64{`reads_by_index_total{index="f:spec.node"}`: 1}},
	{"ReadByIndex", func(r *metrics.Resource) { r.ReadByIndex(metrics.ByKeys, 3) }, map[string]float64{`reads_by_index_total{index="keys"}`: 1}},
	{"ReadByIndex", func(r *metrics.Resource) { r.ReadByIndex("not declared", 3) }, map[string]float64{`reads_by_index_total{index="other"}`: 1}},
	{"Listed", func(r *metrics.Resource) { r.Listed(9, 4) }, map[string]float64{"list_evaluated_objects_total": 9, "list_returned_objects_total": 4}},
	{"Parked", func(r *metrics.Resource) { r.Parked() }, map[string]float64{"watchers_parked_total": 1}},
	{"Resumed", func(r *metrics.Resource) { r.Resumed() }, map[string]float64{"watchers_resumed_total": 1}},
	{"WatchBroken", func(r *metrics.Resource) { r.WatchBroken() }, map[string]float64{"storage_watches_broken_total": 1}},
	{"SetIndexes", func(r *metrics.Resource) { r.SetIndexes(3) }, map[string]float64{"indexes": 3}},
	{"Undeliverable", func(r *metrics.Resource) { r.Undeliverable() }, map[string]float64{"storage_undeliverable_total": 1}},
	{"Paused", func(r *metrics.Resource) { r.Paused(true) }, map[string]float64{"paused": 1}},
	{"VersionRequest", func(r *metrics.Resource) { r.VersionRequest() }, map[string]float64{"version_requests_total": 1}},
	{"VersionRequestRead", func(r *metrics.Resource) { r.VersionRequestRead() }, map[string]float64{"version_request_reads_total": 1}},
	{"FollowSilence", func(r *metrics.Resource) { r.FollowSilence(silence) }, map[string]float64{"storage_silence_seconds": 20}},
	// Those for the metrics of the shipped cacher change none of ours; see
	// shipped_test.go.
	{"Mirror", func(r *metrics.Resource) { r.Mirror() }, map[string]float64{}},
	{"Filled", func(r *metrics.Resource) { r.Filled(time.Second) }, map[string]float64{}},
	{"FillFailed", func(r *metrics.Resource) { r.FillFailed() }, map[string]float64{}},
	{"Processed", func(r *metrics.Resource) { r.Processed(3) }, map[string]float64{}},
	{"ConsistentListElsewhere", func(r *metrics.Resource) { r.ConsistentListElsewhere(metrics.FallbackStorage, nil) }, map[string]float64{}},
	{"SetWindowSlots", func(r *metrics.Resource) { r.SetWindowSlots(64) }, map[string]float64{}},
	{"PassOn", func(r *metrics.Resource) { r.PassOn() }, map[string]float64{}},
	{"ReadWait", func(r *metrics.Resource) { r.ReadWait(2 * time.Second) }, map[string]float64{"read_wait_seconds_count": 1, "read_wait_seconds_sum": 2}},
}

// counted are the effects of a method on each value of its label, and on a value that no
// constant stands for, which is counted as other.
func counted[V ~uint8](method, series string, call func(*metrics.Resource, V)) (rows []effect) {
	at := slices.IndexFunc(metrics.List(), func(d metrics.Description) bool { return string(d.Name) == "watchcache_"+series })
	d := metrics.List()[at]
	for i, value := range d.Labels[0].Values {
		v := V(i)
		if i == 0 {
			v = 200
		}
		labels := fmt.Sprintf("{%s=%q}", d.Labels[0].Name, value)
		want := map[string]float64{series + labels: 1}
		if d.Kind == metrics.Histogram {
			want = histogramOf(series, labels, 1)
		}
		rows = append(rows, effect{method, func(r *metrics.Resource) { call(r, v) }, want})
	}
	return rows
}

// effects are the rows of all methods.
var effects = slices.Concat(plainEffects,
	counted("SetBytes", "bytes", func(r *metrics.Resource, v metrics.BytesPart) { r.SetBytes(v, 1) }),
	counted("SetWatchers", "watchers", func(r *metrics.Resource, v metrics.WatcherState) { r.SetWatchers(v, 1) }),
	counted("Event", "events_total", (*metrics.Resource).Event),
	counted("StageTook", "stage_duration_seconds", func(r *metrics.Resource, v metrics.Stage) { r.StageTook(v, time.Second) }),
	counted("FallbackRead", "fallback_reads_total", (*metrics.Resource).FallbackRead),
	counted("ConsistencyCheck", "consistency_checks_total", (*metrics.Resource).ConsistencyCheck),
	counted("ShadowCompared", "shadow_compared_total", (*metrics.Resource).ShadowCompared),
	counted("ShadowDiffered", "shadow_differed_total", (*metrics.Resource).ShadowDiffered),
	counted("ShadowSkipped", "shadow_skipped_total", (*metrics.Resource).ShadowSkipped),
	counted("Ended", "watchers_ended_total", (*metrics.Resource).Ended),
	counted("Relist", "relists_total", (*metrics.Resource).Relist),
	counted("VersionRequestTook", "version_request_duration_seconds", func(r *metrics.Resource, v metrics.VersionResult) { r.VersionRequestTook(v, time.Second) }),
)

// silence is how long the storage was silent.
func silence() time.Duration { return 20 * time.Second }

func histogramOf(name, labels string, sum float64) map[string]float64 {
	return map[string]float64{name + "_count" + labels: 1, name + "_sum" + labels: sum}
}

// newResource returns the handles of the resource of the tests, whose LISTs are
// counted by an index.
func newResource(m *metrics.Metrics) *metrics.Resource {
	r := m.For("fleet.example.com", "devices")
	r.DeclareIndexes("f:spec.node")
	return r
}

func TestEachMethodChangesItsOwnMetricAlone(t *testing.T) {
	for i, e := range effects {
		t.Run(fmt.Sprintf("%02d_%s", i, e.method), func(t *testing.T) {
			reg := prometheus.NewRegistry()
			m, err := metrics.New(reg)
			require.NoError(t, err)
			r, neighbour := newResource(m), m.For("", "pods")
			neighbour.DeclareIndexes("f:spec.node")
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

// Each method of Resource has a row in the table above.
func TestEveryMethodIsInTheTable(t *testing.T) {
	tested := map[string]bool{"Forget": true, "Totals": true, "DeclareIndexes": true}
	for _, e := range effects {
		tested[e.method] = true
	}
	typ := reflect.TypeFor[*metrics.Resource]()
	for i := range typ.NumMethod() {
		require.True(t, tested[typ.Method(i).Name], "Resource.%s has no row in effects", typ.Method(i).Name)
	}
}

// A metric that no method moves is not in the list, and a value of a label that no
// method counts is not either.
func TestEveryMetricIsMovedByAMethod(t *testing.T) {
	moved := map[string]bool{}
	for _, e := range effects {
		for series := range e.want {
			name, labels, _ := strings.Cut("watchcache_"+series, "{")
			for _, part := range []string{"_count", "_sum"} {
				name = strings.TrimSuffix(name, part)
			}
			moved[name] = true
			for label := range strings.SplitSeq(strings.TrimSuffix(labels, "}"), ",") {
				moved[name+" "+label] = true
			}
		}
	}
	for _, d := range metrics.List() {
		require.True(t, moved[string(d.Name)], "no row of effects moves %s", d.Name)
		for _, l := range d.Labels {
			for _, v := range l.Values {
				if d.Kind == metrics.Gauge && v == "other" {
					continue
				}
				if d.Name == metrics.NameReads || d.Name == metrics.NameReadDuration {
					continue // each has all decisions, of which rows show some
				}
				require.True(t, moved[fmt.Sprintf("%s %s=%q", d.Name, l.Name, v)], "no row of effects moves %s with %s=%q", d.Name, l.Name, v)
			}
		}
	}
}

// The list describes exactly the metrics that are exported.
func TestListDescribesWhatIsExported(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	require.NoError(t, err)
	r := newResource(m)
	for _, e := range effects {
		if e.method != "FellAsleep" {
			e.call(r)
		}
	}
	families, err := reg.Gather()
	require.NoError(t, err)
	exported := map[string]*dto.MetricFamily{}
	for _, f := range families {
		exported[f.GetName()] = f
	}
	described := metrics.List()
	require.Equal(t, len(described), len(exported))
	for _, d := range described {
		f := exported[string(d.Name)]
		require.NotNil(t, f, d.Name)
		require.Equal(t, strings.ToUpper(string(d.Kind)), f.GetType().String(), d.Name)
		require.Equal(t, d.Help, f.GetHelp())
		require.Equal(t, d.Kind == metrics.Histogram, len(d.Buckets) > 0, d.Name)
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if l.GetName() == "group" || l.GetName() == "resource" {
					continue
				}
				at := slices.IndexFunc(d.Labels, func(own metrics.Label) bool { return own.Name == l.GetName() })
				require.GreaterOrEqual(t, at, 0, "%s has the label %s", d.Name, l.GetName())
				if values := d.Labels[at].Values; len(values) > 0 {
					require.Contains(t, values, l.GetValue(), d.Name)
				}
			}
		}
	}
	described[0].Labels = append(described[0].Labels, metrics.Label{})
	described[1].Name = "changed"
	require.NotEqual(t, described, metrics.List(), "the list belongs to the caller")
}

// Histograms have classic and native buckets.
func TestHistogramsAreClassicAndNative(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	require.NoError(t, err)
	r := m.For("", "pods")
	r.ReadWait(2 * time.Millisecond)
	r.ReadWait(time.Second)
	families, err := reg.Gather()
	require.NoError(t, err)
	at := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == string(metrics.NameReadWait) })
	require.GreaterOrEqual(t, at, 0)
	h := families[at].GetMetric()[0].GetHistogram()
	require.EqualValues(t, 2, h.GetSampleCount())
	require.NotEmpty(t, h.GetBucket())
	for _, b := range h.GetBucket() {
		want := uint64(0)
		if b.GetUpperBound() >= 0.002 {
			want++
		}
		if b.GetUpperBound() >= 1 {
			want++
		}
		require.Equal(t, want, b.GetCumulativeCount(), "le=%v", b.GetUpperBound())
	}
	require.NotNil(t, h.Schema, "no native buckets")
	require.Len(t, h.GetPositiveDelta(), 2)
}

// A series of a counter's or a histogram's label appears with its first count;
// other counters and gauges are there at once.
func TestSeriesAppearWhenCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	require.NoError(t, err)
	r := newResource(m)
	series := gather(t, reg)
	for _, d := range metrics.List() {
		name := string(d.Name) + " of fleet.example.com/devices"
		switch {
		case d.Kind == metrics.Histogram:
			require.NotContains(t, series, strings.Replace(name, " of", "_count of", 1))
		case len(d.Labels) > 0 || d.Name == metrics.NameStorageSilence || strings.HasSuffix(string(d.Name), "resource_version"):
			require.NotContains(t, series, name)
		default:
			require.Contains(t, series, name)
		}
	}
	require.Contains(t, series, `watchcache_watchers{state="parked"} of fleet.example.com/devices`)
	require.NotContains(t, series, `watchcache_watchers_ended_total{reason="stopped"} of fleet.example.com/devices`)
	r.Ended(metrics.EndStopped)
	require.Contains(t, gather(t, reg), `watchcache_watchers_ended_total{reason="stopped"} of fleet.example.com/devices`)
	require.NotContains(t, gather(t, reg), `watchcache_watchers_ended_total{reason="expired"} of fleet.example.com/devices`)
}

// The metrics of a cache in which little happens take little memory, what is passed on
// to the shipped ones included: 33 kB when there was an object for each series.
func TestHeapOfMetrics(t *testing.T) {
	const caches, most = 500, 7 << 10
	m, err := metrics.New(prometheus.NewRegistry())
	require.NoError(t, err)
	all := make([]*metrics.Resource, caches)
	names := make([]string, caches)
	for i := range names {
		names[i] = fmt.Sprintf("resources-%d", i)
	}
	before := heapNow()
	for i := range all {
		r := m.For("example.com", names[i])
		r.Mirror()
		r.DeclareIndexes("f:spec.node", "l:app")
		r.FollowSilence(silence)
		r.Ready(true)
		r.SetObjects(20)
		r.Relist(metrics.RelistStart)
		r.Event(metrics.EventBookmark)
		r.Read(metrics.VerbList, metrics.DecisionLatest)
		r.ReadTook(metrics.VerbList, metrics.DecisionLatest, time.Millisecond)
		all[i] = r
	}
	each := (heapNow() - before) / caches
	t.Logf("the metrics of a cache take %d bytes", each)
	require.LessOrEqual(t, each, uint64(most))
	for _, r := range all {
		r.Forget()
	}
}

func heapNow() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// The handles of no Metrics count for Totals.
func TestTotals(t *testing.T) {
	m, err := metrics.New(prometheus.NewRegistry())
	require.NoError(t, err)
	for name, r := range map[string]*metrics.Resource{"exported": newResource(m), "not exported": newResource(nil)} {
		t.Run(name, func(t *testing.T) {
			for _, e := range effects {
				if e.method != "FellAsleep" {
					e.call(r)
				}
			}
			totals := r.Totals()
			require.Equal(t, map[string]uint64{"latest": 1, "delegate": 1, "refuse": 1}, totals.Reads["get"])
			require.Equal(t, map[string]uint64{"keys": 1, "f:spec.node": 1, "other": 1}, totals.ReadsByIndex)
			require.Equal(t, uint64(1), totals.Ended["expired"])
			require.Equal(t, uint64(1), totals.Relists["start"])
			require.Equal(t, uint64(1), totals.Events["ADDED"])
			require.Equal(t, uint64(1), totals.FallbackReads["storage"])
			require.Equal(t, uint64(1), totals.ConsistencyChecks["failed"])
			fields := reflect.ValueOf(totals)
			for i := range fields.NumField() {
				require.False(t, fields.Field(i).IsZero() || fields.Field(i).Kind() == reflect.Map && fields.Field(i).Len() == 0,
					"Totals.%s shows nothing", fields.Type().Field(i).Name)
			}
			r.FellAsleep()
			totals = r.Totals()
			require.Zero(t, totals.Parked)
			require.Empty(t, totals.Reads)
			require.NotZero(t, totals.WokenUp)
			r.Forget()
			require.Zero(t, r.Totals().WokenUp)
		})
	}
	require.NotPanics(t, func() { (*metrics.Resource)(nil).Totals() })
}

// Regression 61: a resourceVersion that a float would show as another one is
// not shown.
func TestResourceVersionIsExactOrNotThere(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	require.NoError(t, err)
	r := m.For("", "pods")
	const series = "watchcache_resource_version of /pods"
	for _, rv := range []uint64{1<<53 + 1, 1<<53 - 1, math.MaxUint64, 1 << 53, 1<<60 + 1, 7} {
		r.SetResourceVersion(rv)
		got, shown := gather(t, reg)[series]
		require.Equal(t, rv <= 1<<53, shown, "at %d", rv)
		if shown {
			require.Equal(t, rv, uint64(got))
		}
	}
	r.Forget()
	require.NotContains(t, gather(t, reg), series)
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
		"exported":     newResource(m),
		"not exported": newResource(nil),
	} {
		for _, e := range effects {
			if e.method == "FollowSilence" {
				continue
			}
			assert.Zero(t, testing.AllocsPerRun(100, func() { e.call(r) }), "%s: the allocations of a call of %s", name, e.method)
		}
	}
}

func TestLint(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	require.NoError(t, err)
	r := newResource(m)
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
	a.Relist(metrics.RelistStart)
	b.Relist(metrics.RelistStart)
	require.EqualValues(t, 2, gather(t, reg)[`watchcache_relists_total{cause="start"} of /pods`])

	a.Forget()
	require.Contains(t, gather(t, reg), `watchcache_relists_total{cause="start"} of /pods`, "the second handle is in use")
	b.Forget()
	require.Empty(t, gather(t, reg))
}

func TestForeignCollectors(t *testing.T) {
	labels := []string{"group", "resource"}
	for name, foreign := range map[string]prometheus.Collector{
		"same name and labels":  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "watchcache_objects", Help: "Objects in the cache."}, labels),
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

// impostor has the same descriptions as another collector.
type impostor struct{ prometheus.Collector }

// recorder registers another collector than the given one.
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
	r := newResource(m)
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
	require.Zero(t, gather(t, reg)[`watchcache_relists_total{cause="start"} of fleet.example.com/devices`])
	again.Relist(metrics.RelistStart)
	stays.Relist(metrics.RelistStart)
	require.EqualValues(t, 1, gather(t, reg)[`watchcache_relists_total{cause="start"} of fleet.example.com/devices`])
	require.EqualValues(t, 1, gather(t, reg)[`watchcache_relists_total{cause="start"} of /pods`])
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
	require.EqualValues(t, 8*50, gather(t, reg)[`watchcache_relists_total{cause="start"} of /pods`])
	held.Forget()
	require.Empty(t, gather(t, reg))
}

// gather returns every exported series as name{own labels} of group/resource,
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
