// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-watchcache/watchcache/watchcache"
)

const benchObjects = 20_000

// benchState is a state of 20,000 objects in 100 namespaces, with two indexes
// and a window of 10,000 events, and elements to modify it with.
func benchState(b *testing.B) (s *watchcache.State, change func() watchcache.Change) {
	b.Helper()
	s = watchcache.New(watchcache.Config{History: 0, WindowBytes: 1 << 40, MinEvents: 10_000, Indexes: indexes})
	keys := make([]string, benchObjects)
	list := make([]*watchcache.Element, benchObjects)
	for i := range keys {
		keys[i] = fmt.Sprintf("/registry/pods/ns-%03d/pod-%05d", i%100, i)
		list[i] = element(keys[i], 1, fmt.Sprint(i%200))
	}
	s.Replace(list, 1)
	rv := uint64(1)
	return s, func() watchcache.Change {
		rv++
		old := list[rv*7919%benchObjects]
		e := &watchcache.Element{Key: old.Key, RV: rv, Object: old.Object, Labels: old.Labels, Fields: old.Fields}
		return watchcache.Change{Type: watchcache.Modified, Element: e, RV: rv, Whole: true}
	}
}

func BenchmarkApply(b *testing.B) {
	for _, every := range []int{0, 100, 1} {
		name := fmt.Sprintf("Latest every %d", every)
		if every == 0 {
			name = "no Latest"
		}
		b.Run(name, func(b *testing.B) {
			s, change := benchState(b)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				applied, err := s.Apply(change())
				if err != nil {
					b.Fatal(err)
				}
				s.Dispatched(applied.Event.Position + 1)
				if i++; every > 0 && i%every == 0 {
					s.Latest()
				}
			}
		})
	}
}

func BenchmarkReplace(b *testing.B) {
	s, _ := benchState(b)
	var list []*watchcache.Element
	s.Latest().Range("", "", func(e *watchcache.Element) bool {
		list = append(list, e)
		return true
	})
	b.ReportAllocs()
	for b.Loop() {
		s.Replace(list, 1)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchObjects, "ns/object")
}

// BenchmarkAddIndex builds an index with a value for each object, and one with 200.
func BenchmarkAddIndex(b *testing.B) {
	for name, value := range map[string]func(*watchcache.Element) string{
		"own":    func(e *watchcache.Element) string { return e.Object.(*corev1.Pod).Name },
		"shared": func(e *watchcache.Element) string { return e.Labels["value"] },
	} {
		b.Run(name, func(b *testing.B) {
			s, _ := benchState(b)
			index := watchcache.Index{Name: "late", Values: func(e *watchcache.Element, dst []string) []string { return append(dst, value(e)) }}
			for b.Loop() {
				if _, err := s.AddIndex(index, 1<<40); err != nil {
					b.Fatal(err)
				}
				s.DropIndex("late")
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchObjects, "ns/object")
		})
	}
}

// BenchmarkRange measures what LIST costs beyond copying the objects.
func BenchmarkRange(b *testing.B) {
	s, change := benchState(b)
	n := 0
	count := func(*watchcache.Element) bool { n++; return true }
	b.Run("all 20,000", func(b *testing.B) {
		for b.Loop() {
			s.Latest().Range("/registry/pods/", "", count)
		}
	})
	b.Run("all 20,000 after a change", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Apply(change()); err != nil {
				b.Fatal(err)
			}
			s.Latest().Range("/registry/pods/", "", count)
		}
	})
	b.Run("a namespace of 200", func(b *testing.B) {
		for b.Loop() {
			s.Latest().Range("/registry/pods/ns-050/", "", count)
		}
	})
	b.Run("an index value of 100", func(b *testing.B) {
		for b.Loop() {
			s.Latest().RangeIndex("value", "50", "/registry/pods/", "", count)
		}
	})
	b.Run("a page of 500", func(b *testing.B) {
		for b.Loop() {
			left := 500
			s.Latest().Range("/registry/pods/", "/registry/pods/ns-050/", func(*watchcache.Element) bool {
				left--
				return left > 0
			})
		}
	})
}

func BenchmarkAt(b *testing.B) {
	s, change := benchState(b)
	for range 5000 {
		if _, err := s.Apply(change()); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("1,000 events back", func(b *testing.B) {
		b.ReportAllocs()
		rv := s.RV() - 1000
		for now := int64(1); b.Loop(); now++ {
			if _, err := s.At(rv); err != nil {
				b.Fatal(err)
			}
			// Trim drops the kept snapshots, but no event: none is dispatched.
			b.StopTimer()
			s.Trim(now * int64(time.Second))
			b.StartTimer()
		}
	})
	b.Run("kept", func(b *testing.B) {
		rv := s.RV() - 1000
		for b.Loop() {
			if _, err := s.At(rv); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkGet(b *testing.B) {
	s, _ := benchState(b)
	const key = "/registry/pods/ns-042/pod-00042"
	b.Run("State", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Get(key)
		}
	})
	b.Run("Snapshot", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Latest().Get(key)
		}
	})
	b.Run("State, all processors", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				s.Get(key)
			}
		})
	})
}

func BenchmarkSince(b *testing.B) {
	s, change := benchState(b)
	for range 5000 {
		if _, err := s.Apply(change()); err != nil {
			b.Fatal(err)
		}
	}
	buf := make([]*watchcache.Event, 100)
	p := s.Stats().Oldest + 2500
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := s.Since(p, buf); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAtAnyVersion reads versions of 20,000 objects from the far end of a
// window of 100,000 events: the first page, which makes the version, and later
// ones; by key and by an index.
func BenchmarkAtAnyVersion(b *testing.B) {
	const events = 100_000
	s, change := benchState(b)
	for range events {
		if _, err := s.Apply(change()); err != nil {
			b.Fatal(err)
		}
	}
	s.Latest()
	first := s.RV() - events
	version := func(i uint64) *watchcache.Snapshot {
		snapshot, err := s.At(first + i)
		if err != nil {
			b.Fatal(err)
		}
		return snapshot
	}
	page := func(limit int, read func(yield func(*watchcache.Element) bool)) {
		read(func(*watchcache.Element) bool { limit--; return limit > 0 })
	}
	for _, limit := range []int{1, 500, benchObjects} {
		b.Run(fmt.Sprintf("new version, limit %d", limit), func(b *testing.B) {
			for i := uint64(0); b.Loop(); i++ {
				snapshot := version(i % 1000)
				page(limit, func(yield func(*watchcache.Element) bool) { snapshot.Range("/registry/pods/", "", yield) })
			}
		})
	}
	b.Run("new version, index", func(b *testing.B) {
		for i := uint64(0); b.Loop(); i++ {
			snapshot := version(i % 1000)
			page(1, func(yield func(*watchcache.Element) bool) { snapshot.RangeIndex("value", "50", "", "", yield) })
		}
	})
	b.Run("page 2, limit 500, counted", func(b *testing.B) {
		for b.Loop() {
			snapshot, from := version(0), "/registry/pods/ns-002/pod-10002"
			page(500, func(yield func(*watchcache.Element) bool) { snapshot.Range("/registry/pods/", from, yield) })
			snapshot.Count("/registry/pods/", from)
		}
	})
	b.Run("page 2, limit 1, index", func(b *testing.B) {
		for b.Loop() {
			snapshot := version(0)
			page(1, func(yield func(*watchcache.Element) bool) {
				snapshot.RangeIndex("value", "50", "", "/registry/pods/ns-050/", yield)
			})
		}
	})
}
