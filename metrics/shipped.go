// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"
	"time"

	shipped "k8s.io/apiserver/pkg/storage/cacher/metrics"
	kubemetrics "k8s.io/component-base/metrics"
)

// This file mirrors the counts in the metrics of k8s.io/apiserver's cacher, so that its dashboards
// keep working. A server registers these process-wide metrics. We add differences, so that several
// caches add up. COMPATIBILITY.md has a row for each metric.

// Mirror also counts in the metrics of the shipped cacher, on PassOn and when the cache falls
// asleep or is forgotten.
func (r *Resource) Mirror() {
	if r == nil {
		return
	}
	r.mirrors.Store(true)
	if s := r.series.Load(); s != nil {
		s.mirrored.Store(true)
	}
}

// PassOn adds the counts since its last call to the shipped cacher's metrics, if Mirror was called.
// Call it about once a second, outside of the cache's work, because it locks, allocates, and takes
// about a microsecond per LIST.
func (r *Resource) PassOn() {
	if s := r.load(); s != &nowhere {
		s.passOn()
	}
}

// Filled records the duration of a successful list of storage.
func (r *Resource) Filled(d time.Duration) {
	if s := r.load(); s.mirrored.Load() && shippedFillSeconds.IsCreated() {
		shippedFillSeconds.WithLabelValues(s.id.Group, s.id.Resource).Observe(d.Seconds())
	}
}

// FillFailed counts a failed list of storage.
func (r *Resource) FillFailed() { r.load().fillsFailed.Add(1) }

// Processed counts objects and events examined to initialize a watcher, matching or not.
func (r *Resource) Processed(n int) { r.load().processed.Add(uint64(n)) }

// ConsistentListElsewhere counts a consistent LIST that the cache could not serve, by fallback and
// success.
func (r *Resource) ConsistentListElsewhere(fallback ListFallback, err error) {
	s := r.load()
	cells := &s.listsElsewhere
	if err != nil {
		cells = &s.listsFailed
	}
	pick(cells[:], fallback).Add(1)
}

// SetWindowSlots sets the window's capacity, which grows by doubling. The slots of several caches
// of one resource add up.
func (r *Resource) SetWindowSlots(n int) {
	s := r.load()
	if s == &nowhere {
		return
	}
	before := int(r.slots.Swap(int64(n)))
	s.slots.Add(int64(n - before))
	if before == 0 || before == n || !s.mirrored.Load() {
		return
	}
	for ; 2*before <= n; before *= 2 {
		shipped.RecordsWatchCacheCapacityChange(s.id, before, 2*before)
	}
	for ; before/2 >= max(n, 1); before /= 2 {
		shipped.RecordsWatchCacheCapacityChange(s.id, before, before/2)
	}
}

// passedCounter is a counter of the shipped cacher and its value here.
type passedCounter struct {
	to     *kubemetrics.CounterVec
	labels []string // label values after group and resource
	count  func(*series) uint64
}

var passedCounters = []passedCounter{
	{shipped.InitCounter, nil, func(s *series) uint64 { return s.processed.Load() }},
	{shipped.EventsReceivedCounter, nil, func(s *series) uint64 { return sum(s.events[EventAdded:EventBookmark]) }},
	// The shipped cacher also dispatches storage's progress reports.
	{shipped.EventsCounter, nil, func(s *series) uint64 { return s.dispatched.Load() + s.events[EventBookmark].Load() }},
	{shipped.TerminatedWatchersCounter, nil, func(s *series) uint64 {
		return s.ended[EndExpired].Load() + s.ended[EndStalled].Load() + s.ended[EndHeavy].Load()
	}},
	{shipped.WatchCacheInitializations, nil, func(s *series) uint64 { return sum(s.relists[:]) }},
	{shippedFillErrors, nil, func(s *series) uint64 { return s.fillsFailed.Load() }},
	{shipped.ConsistentReadTotal, []string{"true", "false"}, func(s *series) uint64 {
		return s.reads[readAs(VerbList, DecisionConsistent)].Load() + s.listsElsewhere[FallbackNone].Load()
	}},
	{shipped.ConsistentReadTotal, []string{"true", "true"}, func(s *series) uint64 { return s.listsElsewhere[FallbackStorage].Load() }},
	{shipped.ConsistentReadTotal, []string{"false", "false"}, func(s *series) uint64 { return s.listsFailed[FallbackNone].Load() }},
	{shipped.ConsistentReadTotal, []string{"false", "true"}, func(s *series) uint64 { return s.listsFailed[FallbackStorage].Load() }},
	{shipped.ConsistentReadTotal, []string{"false", "skipped"}, func(s *series) uint64 { return s.listsFailed[FallbackRefused].Load() }},
	{shipped.StorageConsistencyCheckTotal, []string{"success"}, func(s *series) uint64 { return s.consistency[CheckPassed].Load() }},
	{shipped.StorageConsistencyCheckTotal, []string{"failure"}, func(s *series) uint64 { return s.consistency[CheckFailed].Load() }},
	{shipped.StorageConsistencyCheckTotal, []string{"error"}, func(s *series) uint64 { return s.consistency[CheckError].Load() }},
}

func sum(cells []cell) (n uint64) {
	for i := range cells {
		n += cells[i].Load()
	}
	return n
}

// mirror holds the counts of one series already passed on.
type mirror struct {
	mu struct {
		sync.Mutex
		counters []uint64 // by passedCounters; nil before the first passOn
		lists    map[string]listed
		returned uint64
		over     bool
	}
}

// listed is the number of LISTs by one index and of their evaluated objects.
type listed struct{ lists, evaluated uint64 }

// passOn passes on the counts since its last call, or keeps them until a server registers the
// shipped metrics.
func (s *series) passOn() {
	if !s.mirrored.Load() || !shipped.EventsReceivedCounter.IsCreated() {
		return
	}
	m := &s.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.over {
		return
	}
	if m.mu.counters == nil {
		m.mu.counters, m.mu.lists = make([]uint64, len(passedCounters)), map[string]listed{}
	}
	for i, c := range passedCounters {
		if n := c.count(s); n > m.mu.counters[i] {
			c.to.WithLabelValues(append([]string{s.id.Group, s.id.Resource}, c.labels...)...).Add(float64(n - m.mu.counters[i]))
			m.mu.counters[i] = n
		}
	}
	s.passLists()
	// Set even unchanged gauges, because they may have been reset.
	shipped.WatchCacheCapacity.WithLabelValues(s.id.Group, s.id.Resource).Set(float64(s.slots.Load()))
	if rv := s.resourceVersion.Load(); rv > 0 {
		shipped.RecordResourceVersion(s.id, rv)
	}
}

// endMirror passes on the rest, deletes the capacity, and sets the version to 0, because its
// unexported series can't be deleted.
func (s *series) endMirror() {
	s.passOn()
	s.mirror.mu.Lock()
	defer s.mirror.mu.Unlock()
	s.mirror.mu.over = true
	if s.mirror.mu.counters != nil {
		shipped.WatchCacheCapacity.Delete(map[string]string{"group": s.id.Group, "resource": s.id.Resource})
		shipped.RecordResourceVersion(s.id, 0)
	}
}

// passLists passes on LISTs. The API only counts one LIST per call, so the first call for an index
// has the objects of all.
func (s *series) passLists() {
	m := &s.mirror
	s.byIndex.each(func(index string, now listed) {
		before := m.mu.lists[index]
		if now.lists == before.lists {
			return
		}
		m.mu.lists[index] = now
		if index == ByKeys {
			index = ""
		}
		all := s.listed[0].Load()
		evaluated, returned := now.evaluated-before.evaluated, all-m.mu.returned
		m.mu.returned = all
		for range now.lists - before.lists {
			shipped.RecordListCacheMetrics(s.id, index, int(evaluated), int(returned))
			evaluated, returned = 0, 0
		}
	})
}
