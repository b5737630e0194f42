// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package watchcache_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// requirePanic requires that f panics with a message that begins with the
// invariant's name.
func requirePanic(t *testing.T, invariant string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		text, _ := recover().(string)
		require.Contains(t, text, invariant+": ")
	}()
	f()
}

// Each of these writes to an element that was published (W5).
var writes = map[string]func(e *watchcache.Element){
	"object":           func(e *watchcache.Element) { e.Object.(*corev1.Pod).Spec.NodeName = "elsewhere" },
	"object's labels":  func(e *watchcache.Element) { e.Labels["value"] = "changed" },
	"labels":           func(e *watchcache.Element) { e.Labels = nil },
	"resourceVersion":  func(e *watchcache.Element) { e.RV++ },
	"object's version": func(e *watchcache.Element) { e.Object.(*corev1.Pod).ResourceVersion = "999" },
	"another object":   func(e *watchcache.Element) { e.Object = nil },
}

func TestPublishedElementIsNeverWrittenAgain(t *testing.T) {
	for name, write := range writes {
		t.Run(name, func(t *testing.T) {
			s := watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1 << 40})
			listed := element("a", 1, "1")
			s.Replace([]*watchcache.Element{listed}, 1)
			write(listed)
			requirePanic(t, "W5", func() { _, _ = s.Apply(modified("a", 5, "2")) })

			s.Replace(nil, 1)
			e := apply(t, s, added("b", 2, "1")).Event
			write(e.Element)
			s.Dispatched(s.Stats().Next)
			requirePanic(t, "W5", func() { s.Trim(int64(time.Hour)) })

			s = watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1 << 40})
			apply(t, s, added("c", 2, "1"))
			left := apply(t, s, deleted("c", 3, "1")).Event
			write(left.Element)
			s.Dispatched(s.Stats().Next)
			requirePanic(t, "W5", func() { s.Trim(int64(time.Hour)) })
		})
	}
}

// A list with an element from after its own resourceVersion would make
// snapshots with changes from their future (W2).
func TestSnapshotHoldsNothingFromAfterIt(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 9, "1")}, 5)
	apply(t, s, added("b", 10, "1"))
	requirePanic(t, "W2", func() { _, _ = s.At(6) })
}

// A cursor ahead of the window would let events be evicted that were not
// dispatched (W6).
func TestCursorStaysBehindTheWindow(t *testing.T) {
	s := watchcache.New(roomy)
	apply(t, s, added("a", 1, "1"))
	s.Dispatched(s.Stats().Next + 1)
	requirePanic(t, "W6", func() { s.Trim(1) })
}

// Without a violation no invariant fires: the other tests of this package run
// with the tag, too.
