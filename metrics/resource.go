// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"sync/atomic"
	"time"

	shipped "k8s.io/apiserver/pkg/storage/cacher/metrics"
)

// Resource is the handles of one cache. Its methods may be called from any
// goroutine, on nil and after Forget. None of them blocks. Counting takes no lock,
// and allocates nothing but, with a first observation, a histogram.
type Resource struct {
	metrics   *Metrics
	user      *user // nil: this is the zero value, which counts nothing
	forgotten atomic.Bool
	series    atomic.Pointer[series] // nil after Forget, and while the cache sleeps
	// mirrors reports whether Mirror was called, and slots is the last argument of
	// SetWindowSlots.
	mirrors atomic.Bool
	slots   atomic.Int64
}

// nowhere takes the counts of handles that count nothing, so that their methods need
// no check. It is never exported.
var nowhere series

// load returns the series to count in.
func (r *Resource) load() *series {
	if r != nil {
		if s := r.series.Load(); s != nil {
			return s
		}
	}
	return &nowhere
}

// FellAsleep drops the counts of a cache that sleeps from now on; the
// handles count nothing until WokenUp.
func (r *Resource) FellAsleep() {
	if r == nil {
		return
	}
	if s := r.series.Swap(nil); s != nil {
		s.slots.Add(-r.slots.Swap(0))
		if r.metrics.count(r.user, 0, -1) == nil {
			s.endMirror()
		}
	}
}

// WokenUp counts that a request woke the cache up, and lets the handles count
// from 0. WokenUp must not be called while another call of WokenUp, FellAsleep or
// Forget is under way.
func (r *Resource) WokenUp() {
	if r != nil && r.user != nil && !r.forgotten.Load() {
		r.user.wokenUp.Add(1)
		r.awake()
	}
}

// awake lets the handles count.
func (r *Resource) awake() {
	if r.series.Load() == nil {
		s := r.metrics.count(r.user, 0, 1)
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
	r.FellAsleep()
	if r != nil && r.user != nil && !r.forgotten.Swap(true) {
		r.metrics.count(r.user, -1, 0)
	}
}

// Read counts a GET or LIST by how it is answered.
func (r *Resource) Read(verb Verb, decision Decision) {
	pick(r.load().reads[:], readAs(verb, decision)).Add(1)
}

// ReadTook records how long a GET or LIST took in all, by how it was answered. Of
// the reads that Read counts, not each one needs to be timed.
func (r *Resource) ReadTook(verb Verb, decision Decision, d time.Duration) {
	s := r.load()
	observe(s, NameReadDuration, s.readDuration[:], readAs(verb, decision), d)
}

// ReadWait records how long a read waited for the cache to be fresh enough.
func (r *Resource) ReadWait(d time.Duration) {
	s := r.load()
	observe(s, NameReadWait, s.readWait[:], uint8(0), d)
	if s.mirrored.Load() && shipped.WatchCacheReadWait.IsCreated() {
		shipped.WatchCacheReadWait.WithLabelValues(s.id.Group, s.id.Resource).Observe(d.Seconds())
	}
}

// FallbackRead counts a consistent read whose cache did not become fresh in time, by its
// outcome.
func (r *Resource) FallbackRead(answer FallbackAnswer) {
	pick(r.load().fallbackReads[:], answer).Add(1)
}

// Listed counts the objects of one LIST that was served from the cache: how
// many it looked at and how many it returned; neither must be negative.
func (r *Resource) Listed(evaluated, returned int) {
	s := r.load()
	s.evaluated[0].Add(uint64(evaluated))
	s.listed[0].Add(uint64(returned))
}

// DeclareIndexes tells by which indexes ReadByIndex will count, until
// FellAsleep or Forget. The names come from the configuration of the cache, so
// that no request adds series. Unlike the other methods it allocates.
func (r *Resource) DeclareIndexes(names ...string) {
	s := r.load()
	if s == &nowhere {
		return
	}
	all := map[string]*namedCounter{}
	for _, name := range append([]string{other, ByKeys}, names...) {
		all[name] = new(namedCounter)
	}
	r.metrics.mu.Lock() // others may declare theirs for the same series
	defer r.metrics.mu.Unlock()
	maps.Copy(all, s.byIndex.all()) // existing ones keep their counts
	s.byIndex.byName.Store(&all)
}

// ReadByIndex counts a LIST that was served from the cache by the index that it
// read, ByKeys if it read a range of keys, and notes how many objects the LIST
// looked at. Names that were not declared are counted as other.
func (r *Resource) ReadByIndex(name string, evaluated int) {
	all := r.load().byIndex.all()
	c := all[name]
	if c == nil {
		c = all[other]
	}
	if c != nil {
		c.evaluated.Add(uint64(evaluated))
		c.reads.Add(1)
	}
}

// VersionRequest counts a request to storage for its current resourceVersion, when
// it is sent.
func (r *Resource) VersionRequest() { r.load().versionRequests[0].Add(1) }

// VersionRequestTook records how long a request for storage's resourceVersion was
// under way, when it has ended or was given up.
func (r *Resource) VersionRequestTook(result VersionResult, d time.Duration) {
	s := r.load()
	observe(s, NameVersionDuration, s.versionDuration[:], result, d)
}

// VersionRequestRead counts a read that waits for the storage's resourceVersion,
// alone or with others.
func (r *Resource) VersionRequestRead() { r.load().versionRequestReads[0].Add(1) }

// Event counts an event that came from storage.
func (r *Resource) Event(typ EventType) { pick(r.load().events[:], typ).Add(1) }

// Dispatched counts the work of dispatching an event: the watchers in the groups that
// the index named, the evaluations, one for each group, and the watchers that
// received it. None must be negative, and there must be a watcher in each group.
func (r *Resource) Dispatched(candidates, evaluations, matches int) {
	s := r.load()
	s.dispatched.Add(1)
	s.candidates[0].Add(uint64(candidates))
	s.evaluations[0].Add(uint64(evaluations))
	s.evaluationsSaved[0].Add(uint64(candidates - evaluations))
	s.matches[0].Add(uint64(matches))
}

// DispatchLag records how long after the feed had recorded an event the event was
// dispatched.
func (r *Resource) DispatchLag(d time.Duration) {
	s := r.load()
	observe(s, NameDispatchLag, s.dispatchLag[:], uint8(0), d)
}

// StageTook records how long an event took in a stage.
func (r *Resource) StageTook(stage Stage, d time.Duration) {
	s := r.load()
	observe(s, NameStageDuration, s.stageDuration[:], stage, d)
}

// Delivered counts events handed to watchers, once for each watcher; n must not
// be negative.
func (r *Resource) Delivered(n int) { r.load().delivered[0].Add(uint64(n)) }

// Initial counts objects that were sent to watchers as their initial state; n
// must not be negative.
func (r *Resource) Initial(n int) { r.load().initial[0].Add(uint64(n)) }

// Encoded counts a serialization that a watcher was sent: one that was made for
// it, or one that there was already.
func (r *Resource) Encoded(shared bool) {
	s := r.load()
	if shared {
		s.encodingsShared[0].Add(1)
	} else {
		s.encodings[0].Add(1)
	}
}

// SetWatchers sets how many watchers are in a state.
func (r *Resource) SetWatchers(state WatcherState, n int) {
	set(pick(r.load().watchers[:], state), float64(n))
}

// SetWatcherLag sets how far the watcher of a rank is behind the dispatcher: in
// events, and in the time since the first of them was recorded.
func (r *Resource) SetWatcherLag(rank WatcherRank, events uint64, behind time.Duration) {
	s := r.load()
	set(pick(s.lagEvents[:], rank), float64(events))
	set(pick(s.lagSeconds[:], rank), behind.Seconds())
}

// Parked counts a live watcher that was parked.
func (r *Resource) Parked() { r.load().parkings[0].Add(1) }

// Resumed counts a parked watcher that went live again.
func (r *Resource) Resumed() { r.load().resumptions[0].Add(1) }

// Expired counts a parked watcher whose position had left the window when it
// came to be served.
func (r *Resource) Expired() { r.load().expired[0].Add(1) }

// BeyondWindow counts a watch that goes on although events after its position have
// left the window.
func (r *Resource) BeyondWindow() { r.load().beyondWindow[0].Add(1) }

// Ended counts a watcher that ended.
func (r *Resource) Ended(reason EndReason) { pick(r.load().ended[:], reason).Add(1) }

// SetIndexes sets how many indexes the cache has built because LISTs needed them.
func (r *Resource) SetIndexes(n int) { set(&r.load().indexes[0], float64(n)) }

// SetObjects sets how many objects the cache holds.
func (r *Resource) SetObjects(n int) { set(&r.load().objects[0], float64(n)) }

// SetBytes sets the estimated size of a part of the cache's memory, in bytes.
func (r *Resource) SetBytes(part BytesPart, n int64) { set(pick(r.load().bytes[:], part), float64(n)) }

// SetWindow sets the length of the window, in events and in time.
func (r *Resource) SetWindow(events int, span time.Duration) {
	s := r.load()
	set(&s.windowEvents[0], float64(events))
	set(&s.windowSeconds[0], span.Seconds())
}

// WindowCut counts n events that left the window for its size, before they were as
// old as events may become there; n must not be negative.
func (r *Resource) WindowCut(n int) { r.load().windowCut[0].Add(uint64(n)) }

// SetInitialSnapshots sets how many different states watches are being sent as
// their initial events.
func (r *Resource) SetInitialSnapshots(n int) { set(&r.load().snapshots[0], float64(n)) }

// SetResourceVersion sets the resourceVersion that the cache has reached. The
// metric shows it exactly, or not at all; 0 is not shown.
func (r *Resource) SetResourceVersion(rv uint64) { r.load().resourceVersion.Store(rv) }

// SetOldestResourceVersion sets the lowest resourceVersion that a watch can
// resume from. The metric shows it as that of SetResourceVersion.
func (r *Resource) SetOldestResourceVersion(rv uint64) { r.load().oldestResourceVersion.Store(rv) }

// SetStorageResourceVersion sets the highest resourceVersion that the storage is
// known to have had. The metric shows it as that of SetResourceVersion.
func (r *Resource) SetStorageResourceVersion(rv uint64) { r.load().storageVersion.Store(rv) }

// Ready sets whether the cache has its state.
func (r *Resource) Ready(ready bool) { set(&r.load().ready[0], oneIf(ready)) }

// Paused sets whether the cache can't follow its storage.
func (r *Resource) Paused(paused bool) { set(&r.load().paused[0], oneIf(paused)) }

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// FollowSilence sets a function that returns how long the storage has been silent; a
// scrape calls it. It must be safe for concurrent use. FollowSilence allocates.
func (r *Resource) FollowSilence(silence func() time.Duration) {
	if s := r.load(); s != &nowhere {
		s.silence.Store(&silence)
	}
}

// Relist counts a full resynchronisation with storage, when it has succeeded.
func (r *Resource) Relist(cause RelistCause) { pick(r.load().relists[:], cause).Add(1) }

// WatchBroken counts a watch on storage that broke and was resumed.
func (r *Resource) WatchBroken() { r.load().watchesBroken[0].Add(1) }

// Undeliverable counts an event or an object that the storage could not
// deliver though it answers.
func (r *Resource) Undeliverable() { r.load().undeliverable[0].Add(1) }

// ConsistencyCheck counts a comparison of the cache with its storage.
func (r *Resource) ConsistencyCheck(result CheckResult) { pick(r.load().consistency[:], result).Add(1) }

// ShadowCompared counts a comparison with the shipped cacher.
func (r *Resource) ShadowCompared(kind ShadowKind) { pick(r.load().shadowCompared[:], kind).Add(1) }

// ShadowDiffered counts a comparison that ShadowCompared counts as well.
func (r *Resource) ShadowDiffered(kind ShadowKind) { pick(r.load().shadowDiffered[:], kind).Add(1) }

// ShadowSkipped counts a comparison that was not made, or came to nothing.
func (r *Resource) ShadowSkipped(why ShadowSkip) { pick(r.load().shadowSkipped[:], why).Add(1) }
