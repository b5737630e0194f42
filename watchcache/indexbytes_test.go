// SPDX-License-Identifier: Apache-2.0

//go:build !race && !invariants

package watchcache_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// The estimate of the memory of the trees of keys and index values is within a
// quarter of what the heap shows, for a state that was listed and for one to which
// objects were added in any order.
func TestIndexBytesAreThoseOfTheHeap(t *testing.T) {
	const objects = 10_000
	byLabel := func(label string) watchcache.Index {
		return watchcache.Index{Name: label, Values: func(e *watchcache.Element, dst []string) []string {
			if value, ok := e.Labels[label]; ok {
				dst = append(dst, value)
			}
			return dst
		}}
	}
	labels := make([]map[string]string, 100)
	for i := range labels {
		labels[i] = map[string]string{"node": "node-" + strconv.Itoa(i), "app": "app-" + strconv.Itoa(i%7)}
	}
	sh, keys := newShared(), keysFor(objects)
	for _, indexes := range [][]watchcache.Index{nil, {byLabel("node")}, {byLabel("node"), byLabel("app"), byLabel("none")}} {
		for _, listed := range []bool{true, false} {
			t.Run(fmt.Sprintf("indexes=%d,listed=%v", len(indexes), listed), func(t *testing.T) {
				elements := make([]*watchcache.Element, objects)
				for i, at := range rand.New(rand.NewPCG(1, 2)).Perm(objects) {
					elements[i] = sh.element(keys[at], uint64(i+2))
					elements[i].Labels = labels[at%len(labels)]
				}
				if listed {
					slices.SortFunc(elements, func(a, b *watchcache.Element) int { return strings.Compare(a.Key, b.Key) })
				}
				before := heap()
				s := watchcache.New(watchcache.Config{History: time.Nanosecond, WindowBytes: 1, Indexes: indexes})
				if listed {
					s.Replace(elements, objects+2)
				} else {
					for _, e := range elements {
						apply(t, s, watchcache.Change{Type: watchcache.Added, Element: e, RV: e.RV, Received: int64(e.RV), Whole: true})
						s.Dispatched(s.Stats().Next)
					}
				}
				s.Trim(int64(time.Hour))
				took, estimate := heap()-before, s.Stats().IndexBytes
				t.Logf("the heap has %d bytes, the estimate is %d: %.2f", took, estimate, float64(estimate)/float64(took))
				require.InEpsilon(t, took, estimate, 0.25)
				runtime.KeepAlive(elements)
				runtime.KeepAlive(s)
			})
		}
	}
}
