// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"sync/atomic"
	"time"

	shipped "k8s.io/apiserver/pkg/storage/cacher/metrics"
)

// Resource is the handles of one cache. Its methods are safe for concurrent use, also on nil and
// after Forget, and don't block. Counting takes no lock and allocates only a histogram, with its
// first observation.
type Resource struct {
	metrics   *Metrics
	user      *user // nil for the zero value, which counts nothing
	forgotten atomic.Bool
	series    atomic.Pointer[series] // nil after Forget and while the cache sleeps
	// mirrors reports whether Mirror was called; slots is the last argument of SetWindowSlots.
	mirrors atomic.Bool
	slots   atomic.Int64
}

// nowhere receives the counts of handles that count nothing. It is never exported.
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

// FellAsleep drops the counts of a cache that goes to sleep. The handles count nothing until
// WokenUp.
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

// WokenUp counts a wake-up by a request and starts counting from 0. It must not be called
// concurrently with WokenUp, FellAsleep or Forget.
func (r *Resource) WokenUp() {
	if r != nil && r.user != nil && !r.forgotten.Load() {
		r.user.wokenUp.Add(1)
		r.awake()
	}
}

func (r *Resource) awake() {
	if r.series.Load() == nil {
		s := r.metrics.count(r.user, 0, 1)
		if r.mirrors.Load() {
			s.mirrored.Store(true)
		}
		r.series.Store(s)
	}
}

// Forget drops the series of a stopped cache, unless another handle of the same group and resource
// remains. The handles count nothing afterwards.
func (r *Resource) Forget() {
	r.FellAsleep()
	if r != nil && r.user != nil && !r.forgotten.Swap(true) {
		r.metrics.count(r.user, -1, 0)
	}
}

// Read counts a GET or LIST by its decision.
func (r *Resource) Read(verb Verb, decision Decision) {
	pick(r.load().reads[:], readAs(verb, decision)).Add(1)
}

// ReadTook records the total duration of a GET or LIST. Callers may time only a sample of reads.
func (r *Resource) ReadTook(verb Verb, decision Decision, d time.Duration) {
	s := r.load()
	observe(s, NameReadDuration, s.readDuration[:], readAs(verb, decision), d)
}

// ReadWait records the time that a read waited for a fresh cache.
func (r *Resource) ReadWait(d time.Duration) {
	s := r.load()
	observe(s, NameReadWait, s.readWait[:], uint8(0), d)
	if s.mirrored.Load() && shipped.WatchCacheReadWait.IsCreated() {
		shipped.WatchCacheReadWait.WithLabelValues(s.id.Group, s.id.Resource).Observe(d.Seconds())
	}
}

// FallbackRead counts a consistent read whose cache did not become fresh in time.
func (r *Resource) FallbackRead(answer FallbackAnswer) {
	pick(r.load().fallbackReads[:], answer).Add(1)
}

// Listed counts the objects that a LIST served from the cache evaluated and returned. Neither may
// be negative.
func (r *Resource) Listed(evaluated, returned int) {
	s := r.load()
	s.evaluated[0].Add(uint64(evaluated))
	s.listed[0].Add(uint64(returned))
}

// DeclareIndexes declares the indexes that ReadByIndex counts, until FellAsleep or Forget. The
// names are from the cache's configuration, so requests can't add series. It locks and allocates.
func (r *Resource) DeclareIndexes(names ...string) {
	s := r.load()
	if s == &nowhere {
		return
	}
	all := map[string]*namedCounter{}
	for _, name := range append([]string{other, ByKeys}, names...) {
		all[name] = new(namedCounter)
	}
	r.metrics.mu.Lock() // handles of the same series may declare concurrently
	defer r.metrics.mu.Unlock()
	maps.Copy(all, s.byIndex.all()) // existing ones keep their counts
	s.byIndex.byName.Store(&all)
}

// ReadByIndex counts a LIST served from the cache, and its evaluated objects, by index, or ByKeys
// for a range of keys. It counts undeclared names as other.
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

// VersionRequest counts a request sent to storage for its current resourceVersion.
func (r *Resource) VersionRequest() { r.load().versionRequests[0].Add(1) }

// VersionRequestTook records the duration of a completed or abandoned request for storage's
// resourceVersion.
func (r *Resource) VersionRequestTook(result VersionResult, d time.Duration) {
	s := r.load()
	observe(s, NameVersionDuration, s.versionDuration[:], result, d)
}

// VersionRequestRead counts a read that waits for storage's resourceVersion, alone or shared.
func (r *Resource) VersionRequestRead() { r.load().versionRequestReads[0].Add(1) }

// Event counts an event received from storage.
func (r *Resource) Event(typ EventType) { pick(r.load().events[:], typ).Add(1) }

// Dispatched counts the dispatch of an event: candidates are the watchers in the groups selected by
// the index, evaluations these groups, matches the receiving watchers.
func (r *Resource) Dispatched(candidates, evaluations, matches int) {
	s := r.load()
	s.dispatched.Add(1)
	s.candidates[0].Add(uint64(candidates))
	s.evaluations[0].Add(uint64(evaluations))
	s.evaluationsSaved[0].Add(uint64(candidates - evaluations))
	s.matches[0].Add(uint64(matches))
}

// DispatchLag records the time from recording an event to its dispatch.
func (r *Resource) DispatchLag(d time.Duration) {
	s := r.load()
	observe(s, NameDispatchLag, s.dispatchLag[:], uint8(0), d)
}

// StageTook records the time of an event in a stage.
func (r *Resource) StageTook(stage Stage, d time.Duration) {
	s := r.load()
	observe(s, NameStageDuration, s.stageDuration[:], stage, d)
}

// Delivered counts events sent, once per watcher. n must not be negative.
func (r *Resource) Delivered(n int) { r.load().delivered[0].Add(uint64(n)) }

// Initial counts objects sent to watchers as initial state. n must not be negative.
func (r *Resource) Initial(n int) { r.load().initial[0].Add(uint64(n)) }

// Encoded counts a serialization sent to a watcher, either encoded for it or shared.
func (r *Resource) Encoded(shared bool) {
	s := r.load()
	if shared {
		s.encodingsShared[0].Add(1)
	} else {
		s.encodings[0].Add(1)
	}
}

// SetWatchers sets the number of watchers in a state.
func (r *Resource) SetWatchers(state WatcherState, n int) {
	set(pick(r.load().watchers[:], state), float64(n))
}

// SetWatcherLag sets the lag behind the dispatcher of the watcher at a rank, in events and in time
// since the first of them was recorded.
func (r *Resource) SetWatcherLag(rank WatcherRank, events uint64, behind time.Duration) {
	s := r.load()
	set(pick(s.lagEvents[:], rank), float64(events))
	set(pick(s.lagSeconds[:], rank), behind.Seconds())
}

// Parked counts a live watcher becoming parked.
func (r *Resource) Parked() { r.load().parkings[0].Add(1) }

// Resumed counts a parked watcher becoming live.
func (r *Resource) Resumed() { r.load().resumptions[0].Add(1) }

// Expired counts a parked watcher whose position left the window.
func (r *Resource) Expired() { r.load().expired[0].Add(1) }

// BeyondWindow counts a watch that continues although events after its position left the window.
func (r *Resource) BeyondWindow() { r.load().beyondWindow[0].Add(1) }

// Ended counts a watcher that ended.
func (r *Resource) Ended(reason EndReason) { pick(r.load().ended[:], reason).Add(1) }

// SetIndexes sets the number of indexes that the cache built on demand for LISTs.
func (r *Resource) SetIndexes(n int) { set(&r.load().indexes[0], float64(n)) }

// SetObjects sets the number of objects in the cache.
func (r *Resource) SetObjects(n int) { set(&r.load().objects[0], float64(n)) }

// SetBytes sets the estimated size of a part of the cache's memory, in bytes.
func (r *Resource) SetBytes(part BytesPart, n int64) { set(pick(r.load().bytes[:], part), float64(n)) }

// SetWindow sets the length of the window, in events and in time.
func (r *Resource) SetWindow(events int, span time.Duration) {
	s := r.load()
	set(&s.windowEvents[0], float64(events))
	set(&s.windowSeconds[0], span.Seconds())
}

// WindowCut counts events evicted from the window for its size before their minimum age. n must not
// be negative.
func (r *Resource) WindowCut(n int) { r.load().windowCut[0].Add(uint64(n)) }

// SetInitialSnapshots sets the number of distinct states being sent to watches as initial events.
func (r *Resource) SetInitialSnapshots(n int) { set(&r.load().snapshots[0], float64(n)) }

// SetResourceVersion sets the cache's resourceVersion. The metric omits 0 and values that a float64
// can't represent exactly, as do the metrics of the following two methods.
func (r *Resource) SetResourceVersion(rv uint64) { r.load().resourceVersion.Store(rv) }

// SetOldestResourceVersion sets the lowest resourceVersion from which a watch can resume.
func (r *Resource) SetOldestResourceVersion(rv uint64) { r.load().oldestResourceVersion.Store(rv) }

// SetStorageResourceVersion sets the highest resourceVersion that storage reported.
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

// FollowSilence sets a function that returns the time since storage's last sign of life. Scrapes
// call it concurrently. FollowSilence allocates.
func (r *Resource) FollowSilence(silence func() time.Duration) {
	if s := r.load(); s != &nowhere {
		s.silence.Store(&silence)
	}
}

// Relist counts a successful full resynchronization with storage.
func (r *Resource) Relist(cause RelistCause) { pick(r.load().relists[:], cause).Add(1) }

// WatchBroken counts a broken and resumed storage watch.
func (r *Resource) WatchBroken() { r.load().watchesBroken[0].Add(1) }

// Undeliverable counts an event or object that storage could not deliver although it answers.
func (r *Resource) Undeliverable() { r.load().undeliverable[0].Add(1) }

// ConsistencyCheck counts a comparison of the cache with its storage.
func (r *Resource) ConsistencyCheck(result CheckResult) { pick(r.load().consistency[:], result).Add(1) }

// ShadowCompared counts a comparison with the shipped cacher.
func (r *Resource) ShadowCompared(kind ShadowKind) { pick(r.load().shadowCompared[:], kind).Add(1) }

// ShadowDiffered counts a difference, in addition to ShadowCompared.
func (r *Resource) ShadowDiffered(kind ShadowKind) { pick(r.load().shadowDiffered[:], kind).Add(1) }

// ShadowSkipped counts a comparison not made or without result.
func (r *Resource) ShadowSkipped(why ShadowSkip) { pick(r.load().shadowSkipped[:], why).Add(1) }
