// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// BenchmarkBacklog is one of many events at full speed that each of 10,000 watchers
// is told of, until all of their clients have all of them. With -cpu 1,2 the
// benchmark says what a second core is worth. On two cores the events go in rounds
// (internal/rounds).
func BenchmarkBacklog(b *testing.B) {
	const watchers = 10_000
	for _, buffer := range []int{cacher.DefaultWatchBuffer, 100} {
		b.Run(fmt.Sprintf("WatchBuffer=%d", buffer), func(b *testing.B) {
			store := memstore.New(poddata.Prefix, poddata.New)
			pod := poddata.Pod("a/one")
			at := store.Put("/pods/a/one", pod)
			c := start(b, store, func(c *cacher.Config) { c.WatchBuffer = buffer })
			var clients sync.WaitGroup
			for range watchers {
				w, err := c.Watch(b.Context(), poddata.Prefix, storage.ListOptions{
					ResourceVersion: fmt.Sprint(at), Recursive: true, Predicate: storage.Everything,
				})
				if err != nil {
					b.Fatal(err)
				}
				clients.Go(func() {
					for range b.N {
						if _, ok := <-w.ResultChan(); !ok {
							b.Error("a watch ended")
							return
						}
					}
				})
			}
			before := c.Status().Totals.Parked
			b.ResetTimer()
			for range b.N {
				store.Put("/pods/a/one", pod.DeepCopy())
			}
			clients.Wait()
			b.StopTimer()
			b.ReportMetric(float64(c.Status().Totals.Parked-before)/float64(b.N), "parkings/op")
		})
	}
}
