// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package doubling is for tests: it measures whether work takes time in proportion to its
// size.
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
	// doublings is how often the size is doubled, and atMost by how much the time may grow
	// each time: n log n stays below it, and a square does not.
	doublings = 4
	atMost    = 2.6
)

// Check fails the test if work of 16 times the size n takes more than 2.6 times as long for
// each doubling, in CPU time of the process, the least of three runs. No garbage is collected
// during the work, because small work would not pay for it. prepare prepares work of a size and
// returns it. Memory that outgrows a processor's own caches makes linear work look worse:
// choose n small.
func Check(t testing.TB, n int, prepare func(n int) (work func())) {
	t.Helper()
	small, large := least(t, n, prepare), least(t, n<<doublings, prepare)
	by := growth(small, large)
	t.Logf("%v for %d, %v for %d: %.2f for each doubling", small, n, large, n<<doublings, by)
	if !(by <= atMost) {
		t.Errorf("twice the size takes %.2f times as long (%v for %d, %v for %d), which is more than %v", by, small, n, large, n<<doublings, atMost)
	}
}

// growth returns by how much the time grows with each doubling.
func growth(small, large time.Duration) float64 {
	return math.Pow(float64(large)/float64(small), 1.0/doublings)
}

func least(t testing.TB, n int, prepare func(n int) func()) time.Duration {
	t.Helper()
	least := time.Duration(math.MaxInt64)
	for range 3 {
		work := prepare(n)
		runtime.GC() // the garbage of prepare, so that work does not pay for it
		percent := debug.SetGCPercent(-1)
		begun := cpuTime(t)
		work()
		least = min(least, cpuTime(t)-begun)
		debug.SetGCPercent(percent)
	}
	return least
}

// cpuTime returns the CPU time of the process.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
