// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"
	shippedmetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

const shippedGroup, ownGroup = "shipped.example.com", "own.example.com"

// progressSupported tells the shipped cacher that the storage reports progress.
type progressSupported struct {
	etcdfeature.FeatureSupportChecker
}

func (progressSupported) Supports(storage.Feature) bool { return true }

// sideBySide is the shipped cacher and ours over one storage, whose metrics have
// groups of their own.
type sideBySide struct {
	store   *memstore.Store
	shipped storage.Interface
	own     *cacher.Cacher
}

func startSideBySide(t *testing.T, change ...func(*cacher.Config)) *sideBySide {
	t.Helper()
	shippedmetrics.Register()
	registerShippedStorage()
	checker := etcdfeature.DefaultFeatureSupportChecker
	etcdfeature.DefaultFeatureSupportChecker = progressSupported{checker}
	t.Cleanup(func() { etcdfeature.DefaultFeatureSupportChecker = checker })

	byPhase := cache.Indexers{storage.FieldIndex("status.phase"): func(obj any) ([]string, error) {
		return []string{string(obj.(*example.Pod).Status.Phase)}, nil
	}}
	s := &sideBySide{store: newStore(poddata.Pod("a/one"), poddata.Pod("a/two", "status.phase=Pending"), poddata.Pod("b/three"))}
	config := podConfig(s.store)
	theirs, err := shipped.NewCacherFromConfig(shipped.Config{
		Storage: s.store, Versioner: config.Versioner, GroupResource: schema.GroupResource{Group: shippedGroup, Resource: "pods"},
		EventsHistoryWindow: cacher.DefaultEventsHistoryWindow, ResourcePrefix: config.ResourcePrefix, Indexers: &byPhase,
		KeyFunc: config.KeyFunc, GetAttrsFunc: config.GetAttrsFunc, NewFunc: config.NewFunc, NewListFunc: config.NewListFunc, Codec: config.Codec,
	})
	require.NoError(t, err)
	delegator := shipped.NewCacheDelegator(theirs, s.store)
	t.Cleanup(func() { delegator.Stop(); theirs.Stop() })
	require.NoError(t, theirs.Wait(testContext(t)))
	s.shipped = delegator
	s.own = start(t, s.store, append(change, func(c *cacher.Config) {
		c.GroupResource, c.Indexers = schema.GroupResource{Group: ownGroup, Resource: "pods"}, &byPhase
	})...)
	return s
}

// both does the same with the two, one after the other.
func (s *sideBySide) both(do func(c storage.Interface)) {
	do(s.shipped)
	do(s.own)
}

// shippedSeries are the series of a group, by name and labels but the group, that
// the cacher of k8s.io/apiserver registers; a histogram is its count.
func shippedSeries(t *testing.T, group string) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			mine, labels := false, []string{}
			for _, l := range m.GetLabel() {
				switch l.GetName() {
				case "group":
					mine = l.GetValue() == group
				case "resource":
				default:
					labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
			}
			if mine && !strings.HasPrefix(f.GetName(), "watchcache_") {
				out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return out
}

// notComparable are series whose values may differ between the caches, with the
// reason; both have them, or the shipped cacher's is 0.
var notComparable = map[string]string{
	"apiserver_watch_cache_initializations_total{}":           "after failures each pauses for its own time",
	"apiserver_watch_cache_initialization_errors_total{}":     "as above",
	"apiserver_watch_cache_initialization_duration_seconds{}": "as above",
	"apiserver_watch_cache_events_dispatched_total{}":         "the shipped one counts each event again as progress",
	"apiserver_watch_cache_read_wait_seconds{}":               "depends on which reads come before the event that they wait for",
	"apiserver_terminated_watchers_total{}":                   "the shipped one also ends watchers of which a slow test has not read all",
	"watch_cache_capacity{}":                                  "the rings have other sizes",
	"watch_cache_capacity_increase_total{}":                   "as above",
	"watch_cache_capacity_decrease_total{}":                   "a list empties our ring, and not the shipped one",
}

// neverWritten are the shipped cacher's series that our caches do not write.
const neverWritten = "apiserver_watch_events_dispatch_duration_seconds{"

// The series that dashboards for the shipped cacher use: the same operations on
// both caches give the same series with the same values, but for what the table in
// COMPATIBILITY.md says.
func TestShippedSeriesBesideTheShippedCacher(t *testing.T) {
	s := startSideBySide(t, func(c *cacher.Config) { c.WindowBytes = 100 << 10 })
	for i := range 40 {
		put(s.store, poddata.Pod(fmt.Sprintf("a/new-%d", i%10)))
	}
	rv := put(s.store, poddata.Pod("a/last"))
	s.store.Remove("/pods/a/new-3")
	s.both(func(c storage.Interface) {
		expectCount(t, c, "/pods/", "", 13) // consistent, so that the others are at least as new
		for range 3 {
			expectCount(t, c, "/pods/", "0", 13)
		}
		expectCount(t, c, "/pods/b/", "0", 1)
		expectCount(t, c, "/pods/", "0", 1, func(o *storage.ListOptions) {
			o.Predicate = poddata.Predicate("", "status.phase=Pending")
			o.Predicate.IndexFields = []string{"status.phase"}
		})
		readWatch(t, c, "0", 13)              // the state
		readWatch(t, c, fmt.Sprint(rv-9), 10) // the events after a version
	})
	s.readsThatWait(t)
	s.neverReadWatch(t)
	s.store.BreakWatches(apierrors.NewResourceExpired("compacted"))
	awaitSeries(t, "apiserver_watch_cache_initializations_total{}", 2)
	failLists(t, s.store)

	var differences []string
	t.Cleanup(func() { t.Logf("%q", differences) })
	until(t, "both show the same", func() bool {
		differences = differencesOf(shippedSeries(t, shippedGroup), shippedSeries(t, ownGroup))
		return len(differences) == 0
	})
	own := shippedSeries(t, ownGroup)
	s.own.Stop()
	stopped := shippedSeries(t, ownGroup)
	require.NotContains(t, stopped, "watch_cache_capacity{}")
	require.Zero(t, stopped["apiserver_watch_cache_resource_version{}"])
	require.Equal(t, own["apiserver_cache_list_total{}"], stopped["apiserver_cache_list_total{}"])
}

// differencesOf compares the series of the shipped cacher with ours.
func differencesOf(theirs, own map[string]float64) (out []string) {
	for series, want := range theirs {
		got, ok := own[series]
		_, differs := notComparable[series]
		switch {
		case strings.HasPrefix(series, neverWritten):
			if ok {
				out = append(out, series+" is written")
			}
		case !differs && got != want, differs && want > 0 && got == 0:
			out = append(out, fmt.Sprintf("%s is %v, want %v", series, got, want))
		}
	}
	for series := range own {
		if _, ok := theirs[series]; !ok && notComparable[series] == "" {
			out = append(out, "the shipped cacher has no "+series)
		}
	}
	return out
}

// readsThatWait reads from both until the reads of both had to wait for an event
// that the storage held back.
func (s *sideBySide) readsThatWait(t *testing.T) {
	t.Helper()
	until(t, "reads of both caches wait", func() bool {
		release := s.store.Hold()
		put(s.store, poddata.Pod("a/last"))
		asked := s.store.Requests()["version"]
		var wg sync.WaitGroup
		s.both(func(c storage.Interface) {
			wg.Go(func() { expectCount(t, c, "/pods/", "", 13) })
		})
		assert.NoError(t, s.store.AwaitRequests(testContext(t), "version", asked+2))
		release()
		wg.Wait()
		const waits = "apiserver_watch_cache_read_wait_seconds{}"
		return shippedSeries(t, shippedGroup)[waits] > 0 && shippedSeries(t, ownGroup)[waits] > 0
	})
}

// neverReadWatch opens a watch that nobody reads, and writes until both caches have
// ended it.
func (s *sideBySide) neverReadWatch(t *testing.T) {
	t.Helper()
	s.both(func(c storage.Interface) {
		_, pods := list(t, c, "/pods/", "")
		w, err := c.Watch(testContext(t), "/pods/", everything(pods.ResourceVersion))
		require.NoError(t, err)
		t.Cleanup(w.Stop)
	})
	// An event that comes before that counts as one that the watch begins with.
	until(t, "the watch is live", func() bool { return s.own.Status().Watches.Live == 1 })
	for range 1500 {
		put(s.store, poddata.Pod("a/last"))
	}
	s.both(func(c storage.Interface) { list(t, c, "/pods/", "") }) // consistent: both have all events
	awaitSeries(t, "apiserver_terminated_watchers_total{}", 1)
}

// expectCount lists, and wants so many items.
func expectCount(t *testing.T, c storage.Interface, key, rv string, want int, change ...func(*storage.ListOptions)) {
	t.Helper()
	_, pods := list(t, c, key, rv, change...)
	require.Len(t, pods.Items, want, "%s at %q", key, rv)
}

// readWatch opens a watch, reads n events and stops it.
func readWatch(t *testing.T, c storage.Interface, rv string, n int) {
	t.Helper()
	w, err := c.Watch(testContext(t), "/pods/", everything(rv))
	require.NoError(t, err)
	defer w.Stop()
	for range n {
		event := <-w.ResultChan()
		require.NotEqual(t, watch.EventType(""), event.Type)
	}
}

// awaitSeries waits until both caches show at least so much.
func awaitSeries(t *testing.T, series string, least float64) {
	t.Helper()
	until(t, series, func() bool {
		return shippedSeries(t, shippedGroup)[series] >= least && shippedSeries(t, ownGroup)[series] >= least
	})
}

// failLists has the next lists of the storage fail, until both caches have counted
// that.
func failLists(t *testing.T, store *memstore.Store) {
	t.Helper()
	for _, kind := range []string{"list", "watch"} {
		store.Fail(kind, apierrors.NewInternalError(fmt.Errorf("the disk is on fire")))
	}
	store.BreakWatches(apierrors.NewResourceExpired("compacted"))
	if shippedCountsFillErrors {
		awaitSeries(t, "apiserver_watch_cache_initialization_errors_total{}", 1)
	} else {
		require.NotContains(t, shippedSeries(t, ownGroup), "apiserver_watch_cache_initialization_errors_total{}")
	}
	for _, kind := range []string{"list", "watch"} {
		store.Fail(kind, nil)
	}
	awaitSeries(t, "apiserver_watch_cache_initializations_total{}", 3)
}

// The state of a cache is measured once a second: what it holds, how far back its
// window reaches, and its versions beside the storage's.
func TestMetricsOfTheState(t *testing.T) {
	meters, metric := metered(t)
	inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		elapse(5 * time.Second)
		w := watchPods(t, c, "/pods/", "101")
		put(store, poddata.Pod("a/pod-00"))
		expectReceived(t, w, "MODIFIED a/pod-00@102")
		elapse(20 * time.Second)
		for series, want := range map[string]float64{
			"storage_silence_seconds": 20, "ready": 1, "paused": 0, "objects": 100, "window_events": 1, "watchers": 1,
			"resource_version": 102, "oldest_resource_version": 101, "storage_resource_version": 102,
		} {
			assert.Equal(t, want, metric(series), series)
		}
		assert.InDelta(t, 25, metric("window_seconds"), 1, "how many seconds the window reaches back")
		objects, indexes := metric(`bytes{part="objects"}`), metric(`bytes{part="indexes"}`)
		assert.GreaterOrEqual(t, objects, float64(100*100), "the bytes of the objects")
		assert.GreaterOrEqual(t, indexes, float64(100*16), "the bytes of the indexes")
		assert.LessOrEqual(t, indexes, objects, "the bytes of the indexes, and of the objects")
		assert.NotZero(t, metric(`bytes{part="window"}`), "the bytes of the window")
		assert.Equal(t, c.Status().ObjectBytes, int64(objects), "the metric of the objects' bytes, and the status")
		// The storage goes on, and the cache hears of its version first.
		release := store.Hold()
		put(store, poddata.Pod("a/pod-01"))
		read := goList(t.Context(), c, "")
		elapse(1100 * time.Millisecond)
		assert.EqualValues(t, 102, metric("resource_version"), "where the cache is")
		assert.EqualValues(t, 103, metric("storage_resource_version"), "where the storage is")
		release()
		<-read.done
	}, meters)
}
