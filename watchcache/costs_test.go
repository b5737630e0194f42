// SPDX-License-Identifier: Apache-2.0

//go:build !race && !invariants

// These tests count allocations of the plain build: the race detector and the
// invariants allocate for themselves.

package watchcache_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// heap returns the bytes in use after a garbage collection.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// shared makes elements that share one object and one set of fields, so that
// only the memory of the cache itself is measured.
type shared struct {
	pod    *corev1.Pod
	fields watchcache.Fields
}

func newShared() shared {
	e := element("shared", 1, "shared")
	return shared{e.Object.(*corev1.Pod), e.Fields}
}

func (s shared) element(key string, rv uint64) *watchcache.Element {
	return &watchcache.Element{Key: key, RV: rv, Object: s.pod, Labels: s.pod.Labels, Fields: s.fields}
}

func keysFor(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("/registry/pods/ns-%03d/pod-%05d", i%100, i)
	}
	return keys
}

// filled is a state with an element under each key, at resourceVersion 1.
func filled(config watchcache.Config, sh shared, keys []string) *watchcache.State {
	s := watchcache.New(config)
	elements := make([]*watchcache.Element, len(keys))
	for i, key := range keys {
		elements[i] = sh.element(key, 1)
	}
	s.Replace(elements, 1)
	return s
}

// A change costs its event and nothing else while no reader takes snapshots,
// with indexes or without.
func TestAllocationsOfApply(t *testing.T) {
	const objects, runs = 1000, 20_000
	for name, indexes := range map[string][]watchcache.Index{"no index": nil, "two indexes": indexes} {
		t.Run(name, func(t *testing.T) {
			sh, keys := newShared(), keysFor(objects)
			s := filled(watchcache.Config{History: 0, WindowBytes: 1 << 40, MinEvents: 100, Indexes: indexes}, sh, keys)
			rv := uint64(1)
			elements := make([]*watchcache.Element, runs+1)
			for i := range elements {
				elements[i] = sh.element(keys[i*7%objects], uint64(i)+2)
			}
			allocations := testing.AllocsPerRun(runs, func() {
				e := elements[rv-1]
				rv++
				// An assertion that holds allocates as well.
				if _, err := s.Apply(watchcache.Change{Type: watchcache.Modified, Element: e, RV: rv}); err != nil {
					require.NoError(t, err)
				}
				s.Dispatched(watchcache.Position(rv))
			})
			t.Logf("%.2f allocations an Apply", allocations)
			require.LessOrEqual(t, allocations, 1.0)
		})
	}
}

func TestAllocationsOfReads(t *testing.T) {
	sh, keys := newShared(), keysFor(1000)
	s := filled(roomy, sh, keys)
	for i := range uint64(100) {
		apply(t, s, watchcache.Change{Type: watchcache.Modified, Element: sh.element(keys[i], i+2), RV: i + 2})
	}
	at(t, s, 50)
	buf := make([]*watchcache.Event, 64)
	first := s.Stats().Oldest
	count := func(*watchcache.Element) bool { return true }
	latest := s.Latest()
	for name, read := range map[string]func(){
		"Get":           func() { s.Get(keys[5]) },
		"Latest":        func() { s.Latest() },
		"RV":            func() { s.RV() },
		"Since":         func() { _, _, _ = s.Since(first, buf) },
		"PositionAfter": func() { _, _ = s.PositionAfter(50) },
		"Stats":         func() { s.Stats() },
		"Snapshot.Get":  func() { latest.Get(keys[5]) },
	} {
		require.Zero(t, testing.AllocsPerRun(100, read), name)
	}
	// A closure around yield, and for At the closure that would make the version.
	for name, read := range map[string]func(){
		"At, kept":   func() { _, _ = s.At(50) },
		"Range":      func() { latest.Range("", "", count) },
		"RangeIndex": func() { latest.RangeIndex("value", "shared", "", "", count) },
	} {
		require.LessOrEqual(t, testing.AllocsPerRun(100, read), 1.0, name)
	}
}

// After Progress a snapshot is a new label on the old trees: no tree is
// cloned, and the writer's next change copies what it would have anyway.
func TestProgressClonesNothing(t *testing.T) {
	sh, keys := newShared(), keysFor(1000)
	s := filled(roomy, sh, keys)
	s.Latest()
	rv := uint64(1)
	afterProgress := testing.AllocsPerRun(1000, func() {
		rv++
		require.NoError(t, s.Progress(rv))
		s.Latest()
	})
	t.Logf("%.0f allocations for Latest after Progress", afterProgress)
	require.LessOrEqual(t, afterProgress, 1.0, "the Snapshot itself")
}

// At costs in proportion to the newer events, not to the number of objects.
func TestAllocationsOfAt(t *testing.T) {
	measure := func(objects int) float64 {
		sh, keys := newShared(), keysFor(objects)
		s := filled(watchcache.Config{History: 0, WindowBytes: 1 << 40, MinEvents: 1000}, sh, keys)
		rv := uint64(1)
		return testing.AllocsPerRun(200, func() {
			for range 10 {
				rv++
				apply(t, s, watchcache.Change{Type: watchcache.Modified, Element: sh.element(keys[rv*97%uint64(objects)], rv), RV: rv})
			}
			at(t, s, rv-10)
		})
	}
	small, large := measure(1000), measure(32_000)
	t.Logf("ten events and the version before them: %.0f allocations with 1,000 objects, %.0f with 32,000", small, large)
	require.Less(t, large, 3*small)
}

// Regression 96: a count costs no more memory than its closures, until it is
// one of many far into all elements: a namespace's, and those of the first and
// the last pages of everything.
func TestMemoryOfCount(t *testing.T) {
	const objects = 40_000
	sh, keys := newShared(), make([]string, objects)
	for i := range keys {
		keys[i] = fmt.Sprintf("/registry/pods/ns-%d/pod-%05d", i/(objects/4), i)
	}
	s := filled(roomy, sh, keys)
	apply(t, s, watchcache.Change{Type: watchcache.Modified, Element: sh.element(keys[100], 2), RV: 2})
	for name, snapshot := range map[string]*watchcache.Snapshot{"latest": s.Latest(), "earlier": at(t, s, 1)} {
		count := func(prefix, from string, want int) (bytes uint64) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := snapshot.Count(prefix, from)
			runtime.ReadMemStats(&after)
			require.Equal(t, want, got)
			return after.TotalAlloc - before.TotalAlloc
		}
		for i, bytes := range []uint64{
			count("/registry/pods/ns-1/", "", objects/4),
			count("/registry/pods/ns-1/", keys[objects/4+5000], 5000),
			count("/registry/pods/", keys[500], objects-500),
			count("/registry/pods/", keys[objects-500], 500),
		} {
			require.Less(t, bytes, uint64(8*objects/4), "%s, count %d", name, i)
		}
		require.Greater(t, count("/registry/pods/", keys[objects/2], objects/2), uint64(8*objects-1), "%s: a page in the middle", name)
		require.Less(t, count("/registry/pods/", keys[objects/2+500], objects/2-500), uint64(8*objects/4), "%s: the next one", name)
	}
}

// An event in the window keeps its event, its slot and the old version's
// Element, and no tree, although a reader took a snapshot after each.
func TestHeapOfAnEvent(t *testing.T) {
	const objects, events, bound = 1000, 20_000, 300
	sh, keys := newShared(), keysFor(objects)
	s := filled(watchcache.Config{History: time.Hour, WindowBytes: 1 << 40, MinEvents: 2 * events, Indexes: indexes}, sh, keys)
	before := heap()
	for i := range uint64(events) {
		e := sh.element(keys[i*7%objects], i+2)
		apply(t, s, watchcache.Change{Type: watchcache.Modified, Element: e, RV: i + 2})
		s.Latest()
		if i%1000 == 0 {
			at(t, s, i+2-min(i, 100))
		}
	}
	s.Trim(int64(24 * time.Hour)) // drops what At has kept
	perEvent := float64(heap()-before) / events
	require.Equal(t, events, s.Stats().WindowEvents)
	t.Logf("%.0f bytes an event", perEvent)
	require.Less(t, perEvent, float64(bound))
	require.InDelta(t, float64(s.Stats().WindowBytes)/events, perEvent, 300, "the accounting is of this order")
	runtime.KeepAlive(s)
}

// An element takes at most 350 bytes beyond its object: its struct, key and
// nine field values, and its place in the tree.
func TestHeapOfAnElement(t *testing.T) {
	const objects, bound = 20_000, 350
	pods := make([]*corev1.Pod, objects)
	for i := range pods {
		pods[i] = newShared().pod.DeepCopy()
		pods[i].Namespace = fmt.Sprintf("ns-%03d", i%100)
		pods[i].Name = fmt.Sprintf("pod-%05d", i)
		pods[i].Spec.NodeName = fmt.Sprintf("node-%03d", i%300)
	}
	before := heap()
	var names watchcache.FieldNames
	elements := make([]*watchcache.Element, objects)
	for i, pod := range pods {
		set := fields.Set{
			"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName,
			"spec.restartPolicy": "Always", "spec.schedulerName": "default-scheduler", "spec.serviceAccountName": "default",
			"spec.hostNetwork": "false", "status.phase": "Running", "status.nominatedNodeName": "",
		}
		key := strings.Join([]string{"/registry/pods", pod.Namespace, pod.Name}, "/")
		elements[i] = &watchcache.Element{Key: key, RV: 1, Object: pod, Labels: pod.Labels, Fields: names.Compact(set)}
	}
	s := watchcache.New(roomyWithout)
	s.Replace(elements, 1)
	elements = nil
	perElement := float64(heap()-before) / objects
	t.Logf("%.0f bytes an element beyond its object, accounted as %d", perElement, s.Stats().ObjectBytes/objects)
	require.Less(t, perElement, float64(bound))
	runtime.KeepAlive(pods)

	// An index costs its place in another tree.
	indexed := watchcache.New(watchcache.Config{WindowBytes: 1, Indexes: indexes[:1]})
	before = heap()
	s.Latest().Range("", "", func(e *watchcache.Element) bool {
		elements = append(elements, e)
		return true
	})
	indexed.Replace(elements, 1)
	elements = nil
	t.Logf("%.0f bytes an element for a second state of the same elements with an index", float64(heap()-before)/objects)
	runtime.KeepAlive(s)
	runtime.KeepAlive(indexed)
}

var roomyWithout = watchcache.Config{History: time.Hour, WindowBytes: 1 << 40}

// Regression 43, counted: an index whose values come and go does not grow.
func TestHeapOfAnIndexStaysFlat(t *testing.T) {
	sh := newShared()
	s := watchcache.New(watchcache.Config{History: 0, WindowBytes: 1 << 40, Indexes: []watchcache.Index{{
		Name: "key", Values: func(e *watchcache.Element, dst []string) []string { return append(dst, e.Key) },
	}}})
	rv := uint64(0)
	churn := func() {
		for i := range 20_000 {
			key := fmt.Sprint("value-", i)
			rv++
			apply(t, s, watchcache.Change{Type: watchcache.Added, Element: sh.element(key, rv), RV: rv})
			rv++
			apply(t, s, watchcache.Change{Type: watchcache.Deleted, Element: sh.element(key, rv), RV: rv})
			s.Dispatched(s.Stats().Next)
		}
		s.Trim(int64(time.Hour))
	}
	churn()
	before := heap()
	churn()
	require.Less(t, heap()-before, int64(64<<10))
	runtime.KeepAlive(s)
}

// Objects with the same fields share their names, also where other objects
// come between them.
func TestHeapOfFieldNames(t *testing.T) {
	const objects = 10_000
	var names watchcache.FieldNames
	sets := []fields.Set{{}, {}}
	for i := range 9 {
		sets[0][fmt.Sprint("metadata.field", i)] = "x"
		sets[1][fmt.Sprint("spec.field", i)] = "x"
	}
	all := make([]watchcache.Fields, objects)
	before := heap()
	for i := range all {
		all[i] = names.Compact(sets[i%2])
	}
	perObject := float64(heap()-before) / objects
	t.Logf("%.0f bytes for the fields of an object", perObject)
	require.Less(t, perObject, 160.0, "nine values are 144")
	runtime.KeepAlive(all)
	runtime.KeepAlive(names)
}

// One allocation an object once the names are known: its values.
func TestAllocationsOfFields(t *testing.T) {
	var names watchcache.FieldNames
	set := fields.Set{"a": "1", "b": "2", "c": "3", "d": "", "metadata.name": "x", "metadata.namespace": "y"}
	names.Compact(set)
	require.Equal(t, 1.0, testing.AllocsPerRun(100, func() { names.Compact(set) }))
	f := names.Compact(set)
	require.Zero(t, testing.AllocsPerRun(100, func() { f.Get("metadata.name"); f.Has("nowhere") }))
	require.Zero(t, testing.AllocsPerRun(100, func() { names.Compact(nil) }))
}
