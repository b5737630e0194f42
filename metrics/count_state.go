// SPDX-License-Identifier: Apache-2.0

package metrics

import "time"

// SetObjects sets how many objects the cache holds.
func (r *Resource) SetObjects(n int) {
	if s := r.load(); s != nil {
		set(&s.objects[0], float64(n))
	}
}

// SetBytes sets the estimated size of a part of the cache's memory, in bytes.
func (r *Resource) SetBytes(part BytesPart, n int64) {
	if s := r.load(); s != nil {
		set(pick(s.bytes[:], part), float64(n))
	}
}

// SetWindow sets the length of the window, in events and in the time for which it
// has every event.
func (r *Resource) SetWindow(events int, span time.Duration) {
	if s := r.load(); s != nil {
		set(&s.windowEvents[0], float64(events))
		set(&s.windowSeconds[0], span.Seconds())
	}
}

// WindowCut counts n events that left the window for its size, before they were as
// old as events may become there; n must not be negative.
func (r *Resource) WindowCut(n int) {
	if n == 0 {
		return
	}
	if s := r.load(); s != nil {
		s.windowCut[0].Add(uint64(n))
	}
}

// SetInitialSnapshots sets how many different states watches are being sent as
// their initial events.
func (r *Resource) SetInitialSnapshots(n int) {
	if s := r.load(); s != nil {
		set(&s.snapshots[0], float64(n))
	}
}

// SetResourceVersion sets the resourceVersion that the cache has reached. The
// metric shows it exactly, or not at all; 0 is not shown.
func (r *Resource) SetResourceVersion(rv uint64) {
	if s := r.load(); s != nil {
		s.resourceVersion.Store(rv)
	}
}

// SetOldestResourceVersion sets the lowest resourceVersion that a watch can
// resume from. The metric shows it as that of SetResourceVersion.
func (r *Resource) SetOldestResourceVersion(rv uint64) {
	if s := r.load(); s != nil {
		s.oldestResourceVersion.Store(rv)
	}
}

// SetStorageResourceVersion sets the highest resourceVersion that the storage is
// known to have had. The metric shows it as that of SetResourceVersion.
func (r *Resource) SetStorageResourceVersion(rv uint64) {
	if s := r.load(); s != nil {
		s.storageResourceVersion.Store(rv)
	}
}

// Ready sets whether the cache has its state.
func (r *Resource) Ready(ready bool) {
	if s := r.load(); s != nil {
		set(&s.ready[0], oneIf(ready))
	}
}

// Paused sets whether the cache can't follow its storage.
func (r *Resource) Paused(paused bool) {
	if s := r.load(); s != nil {
		set(&s.paused[0], oneIf(paused))
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
