// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	shipped "k8s.io/apiserver/pkg/storage/cacher/metrics"
)

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
// and shrunk since the last call. They are set also if they are what they were,
// because someone may have reset them.
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
