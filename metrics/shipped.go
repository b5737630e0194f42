// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	shipped "k8s.io/apiserver/pkg/storage/cacher/metrics"
	kubemetrics "k8s.io/component-base/metrics"
)

// This file passes the counts on to the metrics of the cacher that
// k8s.io/apiserver ships, so that dashboards for that cacher go on working.
// Those metrics belong to the process, and a server registers them. The counts
// are passed on in differences, so that everyone who counts there adds up.
// COMPATIBILITY.md has a row for each of them.

// Mirror has the counts of the handles passed on to the metrics of the shipped
// cacher as well: by PassOn, and when the cache falls asleep or is forgotten.
func (r *Resource) Mirror() {
	if r == nil {
		return
	}
	r.mirrors.Store(true)
	if s := r.series.Load(); s != nil {
		s.mirrored.Store(true)
	}
}

// PassOn adds the counts since the last call to the metrics of the shipped
// cacher, if Mirror was called. A LIST takes about a microsecond, so PassOn is
// called beside the work of the cache, about once a second. Unlike the other
// methods PassOn takes locks and allocates.
func (r *Resource) PassOn() {
	if s := r.load(); s != &nowhere {
		s.passOn(r.id)
	}
}

// Filled records how long it took to list the storage, successfully. Unlike the
// other methods it takes a lock.
func (r *Resource) Filled(d time.Duration) {
	if s := r.load(); s.mirrored.Load() {
		s.mirror.filled(d)
	}
}

// FillFailed counts a list of the storage that failed.
func (r *Resource) FillFailed() { r.load().fillsFailed.Add(1) }

// Processed counts n objects and events that were looked at to bring a new
// watcher up to date, whether they were for the watcher or not.
func (r *Resource) Processed(n int) { r.load().processed.Add(uint64(n)) }

// ConsistentListElsewhere counts a consistent LIST that the cache could not serve, by
// the fallback and whether the client got its list.
func (r *Resource) ConsistentListElsewhere(fallback ListFallback, err error) {
	s := r.load()
	cells := &s.listsElsewhere
	if err != nil {
		cells = &s.listsFailed
	}
	pick(cells[:], fallback).Add(1)
}

// SetWindowSlots sets for how many events the window has room before it grows.
// The slots of several caches of one resource add up.
func (r *Resource) SetWindowSlots(n int) {
	s := r.load()
	if s == &nowhere {
		return
	}
	before := r.slots.Swap(int64(n))
	s.slots.Add(int64(n) - before)
	if before == 0 {
		return
	}
	for before *= 2; before <= int64(n); before *= 2 {
		s.grown.Add(1)
	}
	for before /= 2; before > int64(n); before /= 2 {
		s.shrunk.Add(1)
	}
}

// passedCounter is a counter of the shipped cacher, and the count for it.
type passedCounter struct {
	to     *kubemetrics.CounterVec
	labels []string // the values of the labels after group and resource
	count  func(*series) uint64
}

var passedCounters = []passedCounter{
	{shipped.InitCounter, nil, func(s *series) uint64 { return s.processed.Load() }},
	{shipped.EventsReceivedCounter, nil, func(s *series) uint64 { return sum(s.events[EventAdded:EventBookmark]) }},
	// The shipped cacher dispatches the storage's reports of progress, too.
	{shipped.EventsCounter, nil, func(s *series) uint64 { return s.dispatched.Load() + s.events[EventBookmark].Load() }},
	{shipped.TerminatedWatchersCounter, nil, func(s *series) uint64 {
		return s.ended[EndExpired].Load() + s.ended[EndStalled].Load() + s.ended[EndHeavy].Load()
	}},
	{shipped.WatchCacheInitializations, nil, func(s *series) uint64 { return sum(s.relists[:]) }},
	{shippedFillErrors, nil, func(s *series) uint64 { return s.fillsFailed.Load() }},
	{shipped.ConsistentReadTotal, []string{"true", "false"}, func(s *series) uint64 {
		return pickRead(&s.reads, VerbList, DecisionConsistent).Load() + s.listsElsewhere[FallbackNone].Load()
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

// mirror holds the counts of one series that were passed on already.
type mirror struct {
	// readWait is the shipped histogram of the resource, nil as long as nothing was
	// observed since it is registered.
	readWait atomic.Pointer[kubemetrics.ObserverMetric]

	mu struct {
		sync.Mutex
		counters      []uint64 // by passedCounters
		lists         map[string]listed
		returned      uint64
		grown, shrunk uint64
		gauges        *mirrorGauges // nil until something was passed on
		// fills are durations that were not passed on yet.
		fills []time.Duration
		over  bool
	}
}

// listed is the LISTs by one index, and the objects that they have looked at.
type listed struct{ lists, evaluated uint64 }

// maxFills is how many durations wait to be passed on, at most: those from before
// the shipped metrics were registered.
const maxFills = 16

func (m *mirror) filled(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.mu.fills) < maxFills {
		m.mu.fills = append(m.mu.fills, d)
	}
}

// waited observes how long a read has waited. With the first observation the
// histogram is looked up, which allocates.
func (m *mirror) waited(id identity, d time.Duration) {
	h := m.readWait.Load()
	if h == nil {
		if h = m.findReadWait(id); h == nil {
			return
		}
	}
	(*h).Observe(d.Seconds())
}

// findReadWait looks up the shipped histogram. A reset of the shipped metrics takes
// it away, so that it is looked up again from time to time.
func (m *mirror) findReadWait(id identity) *kubemetrics.ObserverMetric {
	if !shipped.WatchCacheReadWait.IsCreated() {
		return nil
	}
	h := shipped.WatchCacheReadWait.WithLabelValues(id.group, id.resource)
	m.readWait.Store(&h)
	return &h
}

// passOn passes on the counts since the last time. Before the shipped
// metrics are registered they take nothing, and the counts wait.
func (s *series) passOn(id identity) {
	if !s.mirrored.Load() || !shipped.EventsReceivedCounter.IsCreated() {
		return
	}
	s.mirror.mu.Lock()
	defer s.mirror.mu.Unlock()
	if !s.mirror.mu.over {
		s.passOnLocked(id)
	}
}

// endMirror passes on the rest. The gauges no longer show this series.
func (s *series) endMirror(id identity) {
	s.passOn(id)
	s.mirror.mu.Lock()
	defer s.mirror.mu.Unlock()
	s.mirror.mu.over = true
	if g := s.mirror.mu.gauges; g != nil {
		g.leave(s)
	}
}

func (s *series) passOnLocked(id identity) {
	m := &s.mirror
	if m.mu.counters == nil {
		m.mu.counters = make([]uint64, len(passedCounters))
		m.mu.gauges = joinGauges(id, s)
	}
	for i, c := range passedCounters {
		if n := c.count(s); n > m.mu.counters[i] {
			c.to.WithLabelValues(append([]string{id.group, id.resource}, c.labels...)...).Add(float64(n - m.mu.counters[i]))
			m.mu.counters[i] = n
		}
	}
	for _, d := range m.mu.fills {
		shippedFillSeconds.WithLabelValues(id.group, id.resource).Observe(d.Seconds())
	}
	m.mu.fills = nil
	if m.readWait.Load() != nil {
		m.findReadWait(id)
	}
	s.passLists(id)
	grown, shrunk := s.grown.Load(), s.shrunk.Load()
	m.mu.gauges.set(s, grown-m.mu.grown, shrunk-m.mu.shrunk)
	m.mu.grown, m.mu.shrunk = grown, shrunk
}

// passLists passes on LISTs, one call for each, because there is no other way to
// count them. The first of an index has the objects of all.
func (s *series) passLists(id identity) {
	m := &s.mirror
	resource := schema.GroupResource{Group: id.group, Resource: id.resource}
	s.byIndex.each(func(index string, now listed) {
		before := m.mu.lists[index]
		if now.lists == before.lists {
			return
		}
		if m.mu.lists == nil {
			m.mu.lists = make(map[string]listed)
		}
		m.mu.lists[index] = now
		if index == ByKeys {
			index = ""
		}
		all := s.listed[0].Load()
		evaluated, returned := now.evaluated-before.evaluated, all-m.mu.returned
		m.mu.returned = all
		for range now.lists - before.lists {
			shipped.RecordListCacheMetrics(resource, index, int(evaluated), int(returned))
			evaluated, returned = 0, 0
		}
	})
}

// mirrorGauges are the gauges of the shipped cacher for one resource. They are
// those of the process, so that series on different registries share them: the
// capacities of all add up, and the version is that of whoever was last.
type mirrorGauges struct {
	id    identity
	slots map[*series]int64
}

// mirrored has the gauges of each resource that is mirrored, in the whole process.
var mirrored allMirrorGauges

type allMirrorGauges struct {
	mu struct {
		sync.Mutex
		byID map[identity]*mirrorGauges
	}
}

// joinGauges returns the gauges of the resource, which show the series from the
// next set on.
func joinGauges(id identity, s *series) *mirrorGauges {
	mirrored.mu.Lock()
	defer mirrored.mu.Unlock()
	g := mirrored.mu.byID[id]
	if g == nil {
		g = &mirrorGauges{id: id, slots: make(map[*series]int64)}
		if mirrored.mu.byID == nil {
			mirrored.mu.byID = make(map[identity]*mirrorGauges)
		}
		mirrored.mu.byID[id] = g
	}
	g.slots[s] = 0
	return g
}

// set sets the gauges, and counts how often the window of the series has grown
// and shrunk since the last call. They are set even if unchanged, because
// someone may have reset them.
func (g *mirrorGauges) set(s *series, grown, shrunk uint64) {
	mirrored.mu.Lock()
	defer mirrored.mu.Unlock()
	g.slots[s] = s.slots.Load()
	capacity := g.capacity()
	for range grown {
		shipped.RecordsWatchCacheCapacityChange(g.resource(), capacity-1, capacity)
	}
	for range shrunk {
		shipped.RecordsWatchCacheCapacityChange(g.resource(), capacity+1, capacity)
	}
	shipped.WatchCacheCapacity.WithLabelValues(g.id.group, g.id.resource).Set(float64(capacity))
	if rv := s.resourceVersion.Load(); rv > 0 {
		shipped.RecordResourceVersion(g.resource(), rv)
	}
}

// leave takes a series out. After the last one, there is no capacity any more, and
// the version is 0: its series can't be removed, because it is not exported.
func (g *mirrorGauges) leave(s *series) {
	mirrored.mu.Lock()
	defer mirrored.mu.Unlock()
	delete(g.slots, s)
	if len(g.slots) > 0 {
		shipped.WatchCacheCapacity.WithLabelValues(g.id.group, g.id.resource).Set(float64(g.capacity()))
		return
	}
	delete(mirrored.mu.byID, g.id)
	shipped.WatchCacheCapacity.Delete(map[string]string{"group": g.id.group, "resource": g.id.resource})
	shipped.RecordResourceVersion(g.resource(), 0)
}

func (g *mirrorGauges) capacity() (n int) {
	for _, slots := range g.slots {
		n += int(slots)
	}
	return n
}

func (g *mirrorGauges) resource() schema.GroupResource {
	return schema.GroupResource{Group: g.id.group, Resource: g.id.resource}
}
