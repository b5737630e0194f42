// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cacher_test

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// BenchmarkParked parks many watchers at once, because none of their clients reads 200
// events: what they keep while they are parked, what they cost meanwhile, and what it
// costs when all clients read again at once. Only a first round, -benchtime 1x, counts.
func BenchmarkParked(b *testing.B) {
	for _, watchers := range []int{200, 1000, 10_000} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			const events = 200
			store := memstore.New(poddata.Prefix, poddata.New)
			pod := poddata.Pod("a/one")
			at := store.Put("/pods/a/one", pod)
			c := start(b, store, withLongHistory, func(c *cacher.Config) { c.DispatchBudget = -1 })
			var clients sync.WaitGroup
			reads := make(chan struct{})
			for range watchers {
				w, err := c.Watch(b.Context(), poddata.Prefix, storage.ListOptions{
					ResourceVersion: fmt.Sprint(at), Recursive: true, Predicate: storage.Everything,
				})
				if err != nil {
					b.Fatal(err)
				}
				clients.Go(func() {
					<-reads
					for range events {
						if _, ok := <-w.ResultChan(); !ok {
							b.Error("a watch ended")
							return
						}
					}
				})
			}
			until(b, "all watchers are live", func() bool { return c.Status().Watches.Live == watchers })
			before, goroutines := inUse(), runtime.NumGoroutine()
			spent := spentCPU()
			for range events {
				store.Put("/pods/a/one", pod.DeepCopy())
			}
			until(b, "all watchers are parked", func() bool { return c.Status().Watches.Parked == watchers })
			parking := spentCPU() - spent
			kept := inUse() - before
			goroutines = runtime.NumGoroutine() - goroutines
			spent = spentCPU()
			const idle = 5 * time.Second
			time.Sleep(idle)
			idling := spentCPU() - spent
			spent = spentCPU()
			b.ResetTimer()
			close(reads)
			clients.Wait()
			until(b, "all watchers are live again", func() bool { return c.Status().Watches.Live == watchers })
			b.ReportMetric(float64((spentCPU() - spent).Milliseconds()), "ms-CPU-to-resume")
			b.ReportMetric(float64(parking.Milliseconds()), "ms-CPU-to-park")
			b.ReportMetric(float64(kept)/float64(watchers), "B/watcher")
			b.ReportMetric(float64(goroutines), "goroutines")
			b.ReportMetric(float64(idling.Microseconds())/1000/idle.Seconds(), "ms-CPU/s-parked")
		})
	}
}

// inUse returns what the process keeps in heap and stacks.
func inUse() uint64 {
	runtime.GC()
	runtime.GC() // stacks that have become too large are shrunk
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// spentCPU returns the time on processors of the process.
func spentCPU() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
