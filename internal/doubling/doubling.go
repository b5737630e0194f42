// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package doubling checks in tests that work takes time linear in its size.
package doubling

import (
	"math"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"
)

const (
	// doublings is the number of times the size doubles, atMost the maximum growth of the time per
	// doubling. It allows n log n, but not n².
	doublings = 4
	atMost    = 2.6
)

// Check fails the test if the time of work grows by more than a factor of 2.6 per doubling of its
// size, from n to 16n. The time is the process's CPU time, the minimum of three runs, without
// garbage collection. prepare returns the work of a size. Choose n small: memory that exceeds a
// processor's caches makes linear work look worse.
func Check(t testing.TB, n int, prepare func(n int) (work func())) {
	t.Helper()
	small, large := least(t, n, prepare), least(t, n<<doublings, prepare)
	by := growth(small, large)
	t.Logf("%v for %d, %v for %d: %.2f for each doubling", small, n, large, n<<doublings, by)
	if !(by <= atMost) {
		t.Errorf("twice the size takes %.2f times as long (%v for %d, %v for %d), which is more than %v", by, small, n, large, n<<doublings, atMost)
	}
}

// growth returns the factor per doubling.
func growth(small, large time.Duration) float64 {
	return math.Pow(float64(large)/float64(small), 1.0/doublings)
}

func least(t testing.TB, n int, prepare func(n int) func()) time.Duration {
	t.Helper()
	least := time.Duration(math.MaxInt64)
	for range 3 {
		work := prepare(n)
		runtime.GC() // collect prepare's garbage first
		percent := debug.SetGCPercent(-1)
		begun := cpuTime(t)
		work()
		least = min(least, cpuTime(t)-begun)
		debug.SetGCPercent(percent)
	}
	return least
}

func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
