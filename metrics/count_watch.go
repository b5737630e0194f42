// SPDX-License-Identifier: Apache-2.0

package metrics

import "time"

// Event counts an event that came from storage.
func (r *Resource) Event(typ EventType) {
	if s := r.load(); s != nil {
		pick(s.events[:], typ).Add(1)
	}
}

// Dispatched counts what an event took to dispatch: the watchers in the groups
// that the index named, how many groups those are, each of which was evaluated
// once, and the watchers that the event was for. None must be negative, and there
// must be a watcher in each group.
func (r *Resource) Dispatched(candidates, evaluations, matches int) {
	if s := r.load(); s != nil {
		s.dispatched.Add(1)
		s.candidates[0].Add(uint64(candidates))
		s.evaluations[0].Add(uint64(evaluations))
		s.evaluationsSaved[0].Add(uint64(candidates - evaluations))
		s.matches[0].Add(uint64(matches))
	}
}

// DispatchLag records how long after the feed had recorded an event the event was
// dispatched.
func (r *Resource) DispatchLag(d time.Duration) {
	if s := r.load(); s != nil {
		s.dispatchLag[0].observe(NameDispatchLag, d.Seconds())
	}
}

// StageTook records how long an event took in a stage.
func (r *Resource) StageTook(stage Stage, d time.Duration) {
	if s := r.load(); s != nil {
		pick(s.stageDuration[:], stage).observe(NameStageDuration, d.Seconds())
	}
}

// Delivered counts events handed to watchers, once for each watcher; n must not
// be negative.
func (r *Resource) Delivered(n int) {
	if s := r.load(); s != nil {
		s.delivered[0].Add(uint64(n))
	}
}

// Initial counts objects that were sent to watchers as their initial state; n
// must not be negative.
func (r *Resource) Initial(n int) {
	if s := r.load(); s != nil {
		s.initial[0].Add(uint64(n))
	}
}

// Encoded counts a serialization that a watcher was sent: one that was made for
// it, or one that there was already.
func (r *Resource) Encoded(shared bool) {
	if s := r.load(); s != nil {
		if shared {
			s.encodingsShared[0].Add(1)
		} else {
			s.encodings[0].Add(1)
		}
	}
}

// SetWatchers sets how many watchers are in a state.
func (r *Resource) SetWatchers(state WatcherState, n int) {
	if s := r.load(); s != nil {
		set(pick(s.watchers[:], state), float64(n))
	}
}

// SetWatcherLag sets how far the watcher of a rank is behind the dispatcher: in
// events, and in the time since the first of them was recorded.
func (r *Resource) SetWatcherLag(rank WatcherRank, events uint64, behind time.Duration) {
	if s := r.load(); s != nil {
		set(pick(s.lagEvents[:], rank), float64(events))
		set(pick(s.lagSeconds[:], rank), behind.Seconds())
	}
}

// Parked counts a live watcher that was parked.
func (r *Resource) Parked() {
	if s := r.load(); s != nil {
		s.parkings[0].Add(1)
	}
}

// Resumed counts a parked watcher that went live again.
func (r *Resource) Resumed() {
	if s := r.load(); s != nil {
		s.resumptions[0].Add(1)
	}
}

// Expired counts a parked watcher whose position had left the window when it
// came to be served.
func (r *Resource) Expired() {
	if s := r.load(); s != nil {
		s.expired[0].Add(1)
	}
}

// BeyondWindow counts a watch that goes on although events after its position have
// left the window.
func (r *Resource) BeyondWindow() {
	if s := r.load(); s != nil {
		s.beyondWindow[0].Add(1)
	}
}

// Ended counts a watcher that ended.
func (r *Resource) Ended(reason EndReason) {
	if s := r.load(); s != nil {
		pick(s.ended[:], reason).Add(1)
	}
}
