// SPDX-License-Identifier: Apache-2.0

package metrics

import "sync/atomic"

// Resource is the handles of one cache. Its methods may be called from any
// goroutine, on nil and after Forget. None of them blocks. Counting takes no lock,
// and allocates nothing but, with a first observation, a histogram.
type Resource struct {
	collectors *collectors
	id         identity
	// Both are nil when there is nothing to count in: Forget was called, or the
	// Resource is the zero value. Series is also nil while the cache sleeps.
	presence atomic.Pointer[presence]
	series   atomic.Pointer[series]
	// mirrors reports whether Mirror was called, and slots is what SetWindowSlots
	// was last given.
	mirrors atomic.Bool
	slots   atomic.Int64
}

// load returns the series to count in, or nil.
func (r *Resource) load() *series {
	if r == nil {
		return nil
	}
	return r.series.Load()
}

// FellAsleep drops what was counted of a cache that sleeps from now on; the
// handles count nothing until WokenUp.
func (r *Resource) FellAsleep() {
	if r == nil {
		return
	}
	if s := r.series.Swap(nil); s != nil {
		s.slots.Add(-r.slots.Swap(0))
		r.collectors.rest(r.id)
	}
}

// WokenUp counts that a request woke the cache up, and lets the handles count
// from 0. WokenUp must not be called while another call of WokenUp, FellAsleep or
// Forget is under way.
func (r *Resource) WokenUp() {
	if r == nil {
		return
	}
	if p := r.presence.Load(); p != nil {
		p.wokenUp.Add(1)
		r.awake()
	}
}

// awake lets the handles count.
func (r *Resource) awake() {
	if r.presence.Load() != nil && r.series.Load() == nil {
		s := r.collectors.wake(r.id)
		if r.mirrors.Load() {
			s.mirrored.Store(true)
		}
		r.series.Store(s)
	}
}

// Forget drops the series of a stopped cache; the handles count nothing
// afterwards. The series stay while another handle for the same group and
// resource has not been forgotten.
func (r *Resource) Forget() {
	if r == nil {
		return
	}
	r.FellAsleep()
	if p := r.presence.Swap(nil); p != nil {
		r.collectors.release(r.id)
	}
}
