// SPDX-License-Identifier: Apache-2.0

//go:build !race && !invariants

// These tests count allocations of the plain build: the race detector and the
// invariants allocate for themselves.

package watchcache_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

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
		"Get":          func() { s.Get(keys[5]) },
		"Latest":       func() { s.Latest() },
		"RV":           func() { s.RV() },
		"Since":        func() { _, _, _ = s.Since(first, buf) },
		"Stats":        func() { s.Stats() },
		"Snapshot.Get": func() { latest.Get(keys[5]) },
	} {
		require.Zero(t, testing.AllocsPerRun(100, read), name)
	}
	// A closure around yield, and for At the closure that would make the version.
	for name, read := range map[string]func(){
		"At, kept":   func() { _, _ = s.At(50) },
		"Count":      func() { latest.Count("/registry/pods/ns-001/", keys[1]) }, // regression 96
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
