// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Resource is the handles of one cache. Its methods may be called from any
// goroutine, on nil and after Forget; none of them blocks, and none but
// Forget allocates.
type Resource struct {
	collectors *collectors
	id         identity
	// Both are nil when there is nothing to count in: metrics are off, or
	// Forget was called. Series is also nil while the cache sleeps.
	presence atomic.Pointer[presence]
	series   atomic.Pointer[series]
}

// presence is the metrics that a cache has also while it sleeps.
type presence struct {
	asleep  prometheus.Gauge
	wokenUp prometheus.Counter
}

func newPresence(c *collectors, id identity) *presence {
	p := &presence{
		asleep:  c.gauges[nameAsleep].WithLabelValues(id.group, id.resource),
		wokenUp: c.counters[nameWokenUp].WithLabelValues(id.group, id.resource),
	}
	p.asleep.Set(1)
	return p
}

// series is the metrics of one identity, resolved once, so that no label is
// looked up when something is counted. It never changes.
type series struct {
	objects         prometheus.Gauge
	resourceVersion prometheus.Gauge
	windowEvents    prometheus.Gauge
	windowBytes     prometheus.Gauge
	live            prometheus.Gauge
	parked          prometheus.Gauge

	events          map[string]prometheus.Counter
	candidates      prometheus.Counter
	delivered       prometheus.Counter
	initial         prometheus.Counter
	reads           map[read]prometheus.Counter
	staleReads      map[string]prometheus.Counter
	evaluated       prometheus.Counter
	listed          prometheus.Counter
	consistency     map[string]prometheus.Counter
	parkings        prometheus.Counter
	resumptions     prometheus.Counter
	expired         prometheus.Counter
	ended           map[string]prometheus.Counter
	relists         prometheus.Counter
	watchesBroken   prometheus.Counter
	undeliverable   prometheus.Counter
	versionRequests prometheus.Counter
	readWait        prometheus.Observer
}

// read is the label values of one kind of read.
type read struct {
	verb, decision string
}

func newSeries(c *collectors, id identity) *series {
	gaugeOf := func(name string, values ...string) prometheus.Gauge {
		return c.gauges[name].WithLabelValues(append([]string{id.group, id.resource}, values...)...)
	}
	counterOf := func(name string, values ...string) prometheus.Counter {
		return c.counters[name].WithLabelValues(append([]string{id.group, id.resource}, values...)...)
	}
	byValue := func(name string) map[string]prometheus.Counter {
		out := map[string]prometheus.Counter{}
		for _, v := range labelsOf(name)[0].values {
			out[v] = counterOf(name, v)
		}
		return out
	}
	s := &series{
		objects:         gaugeOf(nameObjects),
		resourceVersion: gaugeOf(nameResourceVersion),
		windowEvents:    gaugeOf(nameWindowEvents),
		windowBytes:     gaugeOf(nameWindowBytes),
		live:            gaugeOf(nameWatchers, stateLive),
		parked:          gaugeOf(nameWatchers, stateParked),
		events:          byValue(nameEvents),
		candidates:      counterOf(nameCandidates),
		delivered:       counterOf(nameDelivered),
		initial:         counterOf(nameInitial),
		reads:           map[read]prometheus.Counter{},
		staleReads:      byValue(nameStaleReads),
		evaluated:       counterOf(nameEvaluated),
		listed:          counterOf(nameListed),
		consistency:     byValue(nameConsistency),
		parkings:        counterOf(nameParked),
		resumptions:     counterOf(nameResumed),
		expired:         counterOf(nameExpired),
		ended:           byValue(nameEnded),
		relists:         counterOf(nameRelists),
		watchesBroken:   counterOf(nameWatchesBroken),
		undeliverable:   counterOf(nameUndeliverable),
		versionRequests: counterOf(nameVersionRequests),
		readWait:        c.histograms[nameReadWait].WithLabelValues(id.group, id.resource),
	}
	labels := labelsOf(nameReads)
	for _, verb := range labels[0].values {
		for _, decision := range labels[1].values {
			if (verb == other) == (decision == other) {
				s.reads[read{verb, decision}] = counterOf(nameReads, verb, decision)
			}
		}
	}
	return s
}

// labelsOf gives the labels of the spec called name.
func labelsOf(name string) []label {
	for _, s := range specs {
		if s.name == name {
			return s.labels
		}
	}
	return nil
}

// load gives the series to count in, or nil.
func (r *Resource) load() *series {
	if r == nil {
		return nil
	}
	return r.series.Load()
}

// Forget deletes the label values of a stopped cache; what the handles are
// told afterwards is dropped. The values stay while another handle for the
// same group and resource has not been forgotten.
func (r *Resource) Forget() {
	if r == nil {
		return
	}
	r.FellAsleep()
	if p := r.presence.Swap(nil); p != nil {
		r.collectors.release(r.id)
	}
}

// SetObjects sets how many objects the cache holds.
func (r *Resource) SetObjects(n int) {
	if s := r.load(); s != nil {
		s.objects.Set(float64(n))
	}
}

// SetResourceVersion sets the resourceVersion that the cache has reached.
func (r *Resource) SetResourceVersion(rv uint64) {
	if s := r.load(); s != nil {
		s.resourceVersion.Set(float64(rv))
	}
}

// SetWindow sets the length of the window in events and its estimated size
// in bytes.
func (r *Resource) SetWindow(events int, bytes int64) {
	if s := r.load(); s != nil {
		s.windowEvents.Set(float64(events))
		s.windowBytes.Set(float64(bytes))
	}
}

// SetWatchers sets how many watchers are live and how many are parked.
func (r *Resource) SetWatchers(live, parked int) {
	if s := r.load(); s != nil {
		s.live.Set(float64(live))
		s.parked.Set(float64(parked))
	}
}

// Event counts an event that came from storage: ADDED, MODIFIED, DELETED or
// BOOKMARK. Anything else is counted as other.
func (r *Resource) Event(typ string) {
	if s := r.load(); s != nil {
		pick(s.events, typ, other).Inc()
	}
}

// Candidates counts n watchers that the watcher index named for one event; n
// must not be negative.
func (r *Resource) Candidates(n int) {
	if s := r.load(); s != nil {
		s.candidates.Add(float64(n))
	}
}

// Delivered counts n events handed to watchers; n must not be negative.
func (r *Resource) Delivered(n int) {
	if s := r.load(); s != nil {
		s.delivered.Add(float64(n))
	}
}

// Initial counts n objects sent to a watcher as its initial state; n must not
// be negative.
func (r *Resource) Initial(n int) {
	if s := r.load(); s != nil {
		s.initial.Add(float64(n))
	}
}

// Read counts a read by verb (get, list) and decision (latest, exact,
// continue, consistent, delegate, refuse). A pair with anything else in it is
// counted as other.
func (r *Resource) Read(verb, decision string) {
	if s := r.load(); s != nil {
		pick(s.reads, read{verb, decision}, read{other, other}).Inc()
	}
}

// StaleRead counts a consistent read for which the cache did not become fresh
// in time, by what became of it: storage or refused. Anything else is counted
// as other.
func (r *Resource) StaleRead(answer string) {
	if s := r.load(); s != nil {
		pick(s.staleReads, answer, other).Inc()
	}
}

// Listed counts the objects of one LIST that was served from the cache: how
// many it looked at and how many it returned; neither must be negative.
func (r *Resource) Listed(evaluated, returned int) {
	if s := r.load(); s != nil {
		s.evaluated.Add(float64(evaluated))
		s.listed.Add(float64(returned))
	}
}

// ConsistencyCheck counts a comparison of the cache with its storage, by
// result: passed, failed or error. Anything else is counted as other.
func (r *Resource) ConsistencyCheck(result string) {
	if s := r.load(); s != nil {
		pick(s.consistency, result, other).Inc()
	}
}

// Parked counts a live watcher that was parked.
func (r *Resource) Parked() {
	if s := r.load(); s != nil {
		s.parkings.Inc()
	}
}

// Resumed counts a parked watcher that went live again.
func (r *Resource) Resumed() {
	if s := r.load(); s != nil {
		s.resumptions.Inc()
	}
}

// Expired counts a parked watcher whose position had left the window when it
// came to be served.
func (r *Resource) Expired() {
	if s := r.load(); s != nil {
		s.expired.Inc()
	}
}

// Ended counts a watcher that ended, by reason: stopped (by its client),
// deadline, expired (its position left the window), relist or shutdown.
// Anything else is counted as other.
func (r *Resource) Ended(reason string) {
	if s := r.load(); s != nil {
		pick(s.ended, reason, other).Inc()
	}
}

// Relist counts a full resynchronisation with storage.
func (r *Resource) Relist() {
	if s := r.load(); s != nil {
		s.relists.Inc()
	}
}

// WatchBroken counts a watch on storage that broke and was resumed.
func (r *Resource) WatchBroken() {
	if s := r.load(); s != nil {
		s.watchesBroken.Inc()
	}
}

// Undeliverable counts an event or an object that the storage could not
// deliver though it answers.
func (r *Resource) Undeliverable() {
	if s := r.load(); s != nil {
		s.undeliverable.Inc()
	}
}

// VersionRequest counts a request to storage for its current resourceVersion.
func (r *Resource) VersionRequest() {
	if s := r.load(); s != nil {
		s.versionRequests.Inc()
	}
}

// FellAsleep drops what was counted of a cache that sleeps from now on; what the
// handles are told meanwhile is dropped too.
func (r *Resource) FellAsleep() {
	if r == nil {
		return
	}
	if s := r.series.Swap(nil); s != nil {
		r.collectors.rest(r.id)
	}
}

// WokenUp counts that a request woke the cache up, and lets the handles count
// from 0. It must not be called while another call of it, FellAsleep or Forget
// is under way.
func (r *Resource) WokenUp() {
	if r == nil {
		return
	}
	if p := r.presence.Load(); p != nil {
		p.wokenUp.Inc()
		r.awake()
	}
}

// awake lets the handles count.
func (r *Resource) awake() {
	if r.presence.Load() != nil && r.series.Load() == nil {
		r.series.Store(r.collectors.wake(r.id))
	}
}

// ReadWait records how long a read waited for the cache to be fresh enough.
func (r *Resource) ReadWait(d time.Duration) {
	if s := r.load(); s != nil {
		s.readWait.Observe(d.Seconds())
	}
}

// pick gives the counter of key, or that of fallback.
func pick[K comparable](counters map[K]prometheus.Counter, key, fallback K) prometheus.Counter {
	if c, ok := counters[key]; ok {
		return c
	}
	return counters[fallback]
}
