// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// cell is the value of one series: a count, or the bits of a gauge's float64.
type cell = atomic.Uint64

func set(c *cell, v float64) { c.Store(math.Float64bits(v)) }

// series holds the counts of one resource while it is awake. Resource writes to the fields without
// a lock, and collectors read them during a scrape. A metric's cells are indexed by its label
// values, the last label varying fastest.
type series struct {
	id schema.GroupResource

	objects, indexes, snapshots, ready, paused             [1]cell
	windowEvents, windowSeconds, windowCut                 [1]cell
	bytes                                                  [len(bytesParts)]cell
	resourceVersion, oldestResourceVersion, storageVersion cell

	events                                             [len(eventTypes)]cell
	dispatchLag                                        [1]lazyHistogram
	stageDuration                                      [len(stages)]lazyHistogram
	candidates, matches, evaluations, evaluationsSaved [1]cell
	delivered, initial, encodings, encodingsShared     [1]cell

	watchers                                     [len(watcherStates)]cell
	lagEvents, lagSeconds                        [len(watcherRanks)]cell
	parkings, resumptions, expired, beyondWindow [1]cell
	ended                                        [len(endReasons)]cell

	reads                                [len(verbs) * len(decisions)]cell
	readDuration                         [len(verbs) * len(decisions)]lazyHistogram
	readWait                             [1]lazyHistogram
	fallbackReads                        [len(fallbackAnswers)]cell
	byIndex                              namedCounters
	evaluated, listed                    [1]cell
	versionRequests, versionRequestReads [1]cell
	versionDuration                      [len(versionResults)]lazyHistogram

	relists                        [len(relistCauses)]cell
	watchesBroken, undeliverable   [1]cell
	consistency                    [len(checkResults)]cell
	shadowCompared, shadowDiffered [len(shadowKinds)]cell
	shadowSkipped                  [len(shadowSkips)]cell
	// silence returns the time since storage's last sign of life. It is nil if unknown.
	silence atomic.Pointer[func() time.Duration]

	// The following are for the shipped cacher's metrics only, if mirrored is true.
	mirrored                           atomic.Bool
	mirror                             mirror
	processed, dispatched, fillsFailed cell
	listsElsewhere, listsFailed        [listFallbacks]cell
	slots                              atomic.Int64
}

// pick returns the element for a label value, or for other.
func pick[T any, V ~uint8](all []T, v V) *T {
	if int(v) >= len(all) {
		v = 0
	}
	return &all[v]
}

// readAs returns the label index of a read's verb and decision.
func readAs(verb Verb, decision Decision) uint8 {
	if verb == 0 || int(verb) >= len(verbs) || decision == 0 || int(decision) >= len(decisions) {
		return 0
	}
	return uint8(verb)*uint8(len(decisions)) + uint8(decision)
}

// namedCounters are counters by names from a cache's configuration. The published map is read-only.
type namedCounters struct {
	byName atomic.Pointer[map[string]*namedCounter]
}

// namedCounter counts reads by one index and their evaluated objects.
type namedCounter struct{ reads, evaluated cell }

func (n *namedCounters) all() map[string]*namedCounter {
	if all := n.byName.Load(); all != nil {
		return *all
	}
	return nil
}

// each calls yield for each counter that is not 0.
func (n *namedCounters) each(yield func(name string, count listed)) {
	for name, c := range n.all() {
		if lists := c.reads.Load(); lists > 0 { // before evaluated, which then includes the objects of these reads
			yield(name, listed{lists, c.evaluated.Load()})
		}
	}
}

// Totals are the counters of one cache since it started or last woke up. Maps are by label value,
// without zero entries.
type Totals struct {
	// Events are events received from storage, by type.
	Events map[string]uint64 `json:"events"`
	// Reads are answered reads, by verb and decision.
	Reads map[string]map[string]uint64 `json:"reads"`
	// ReadsByIndex are LISTs served from the cache, by the index read.
	ReadsByIndex  map[string]uint64 `json:"readsByIndex"`
	FallbackReads map[string]uint64 `json:"staleReads"`
	// EvaluatedObjects and ReturnedObjects are those of LISTs served from the cache.
	EvaluatedObjects uint64 `json:"evaluatedObjects"`
	ReturnedObjects  uint64 `json:"returnedObjects"`
	// Delivered and Initial are events sent, once per watcher.
	Delivered uint64 `json:"delivered"`
	Initial   uint64 `json:"initial"`
	// Candidates are watchers selected by the index for an event; Matches are watchers that
	// received it.
	Candidates       uint64 `json:"candidates"`
	Matches          uint64 `json:"matches"`
	Evaluations      uint64 `json:"evaluations"`
	EvaluationsSaved uint64 `json:"evaluationsSaved"`
	Encodings        uint64 `json:"encodings"`
	EncodingsShared  uint64 `json:"encodingsShared"`
	// Parked, Resumed and Expired count changes of watchers' states.
	Parked  uint64 `json:"parked"`
	Resumed uint64 `json:"resumed"`
	Expired uint64 `json:"expired"`
	// BeyondWindow counts watches that continued although events after their position left the
	// window, because none of these events matched.
	BeyondWindow uint64 `json:"beyondWindow"`
	// Ended are ended watches, by reason.
	Ended map[string]uint64 `json:"ended"`
	// VersionRequests were sent to storage for VersionRequestReads reads.
	VersionRequests     uint64 `json:"versionRequests"`
	VersionRequestReads uint64 `json:"versionRequestReads"`
	// Relists are successful lists of storage, by cause.
	Relists           map[string]uint64 `json:"relists"`
	WatchesBroken     uint64            `json:"watchesBroken"`
	Undeliverable     uint64            `json:"undeliverable"`
	ConsistencyChecks map[string]uint64 `json:"consistencyChecks"`
	// ShadowCompared and ShadowDiffered are comparisons with the shipped cacher, by kind of
	// request; ShadowSkipped are comparisons not made, by reason. They are empty unless the cache
	// is a shadow.
	ShadowCompared map[string]uint64 `json:"shadowCompared,omitempty"`
	ShadowDiffered map[string]uint64 `json:"shadowDiffered,omitempty"`
	ShadowSkipped  map[string]uint64 `json:"shadowSkipped,omitempty"`
	// WokenUp counts the requests that woke the cache. It is kept while the cache sleeps.
	WokenUp uint64 `json:"wokenUp"`
}

// Totals returns the counts, zero for a sleeping cache. Handles for the same group and resource on
// one registry share their counts.
func (r *Resource) Totals() Totals {
	s := r.load()
	if s == &nowhere {
		s = new(series)
	}
	t := Totals{
		Events: byValue(s.events[:], eventTypes[:]), Reads: s.totalReads(), ReadsByIndex: map[string]uint64{},
		FallbackReads:    byValue(s.fallbackReads[:], fallbackAnswers[:]),
		EvaluatedObjects: s.evaluated[0].Load(), ReturnedObjects: s.listed[0].Load(),
		Delivered: s.delivered[0].Load(), Initial: s.initial[0].Load(),
		Candidates: s.candidates[0].Load(), Matches: s.matches[0].Load(),
		Evaluations: s.evaluations[0].Load(), EvaluationsSaved: s.evaluationsSaved[0].Load(),
		Encodings: s.encodings[0].Load(), EncodingsShared: s.encodingsShared[0].Load(),
		Parked: s.parkings[0].Load(), Resumed: s.resumptions[0].Load(), Expired: s.expired[0].Load(),
		BeyondWindow:    s.beyondWindow[0].Load(),
		Ended:           byValue(s.ended[:], endReasons[:]),
		VersionRequests: s.versionRequests[0].Load(), VersionRequestReads: s.versionRequestReads[0].Load(),
		Relists: byValue(s.relists[:], relistCauses[:]), WatchesBroken: s.watchesBroken[0].Load(),
		Undeliverable: s.undeliverable[0].Load(), ConsistencyChecks: byValue(s.consistency[:], checkResults[:]),
		ShadowCompared: byValue(s.shadowCompared[:], shadowKinds[:]), ShadowDiffered: byValue(s.shadowDiffered[:], shadowKinds[:]),
		ShadowSkipped: byValue(s.shadowSkipped[:], shadowSkips[:]),
	}
	s.byIndex.each(func(name string, count listed) { t.ReadsByIndex[name] = count.lists })
	if r != nil && r.user != nil && !r.forgotten.Load() {
		t.WokenUp = r.user.wokenUp.Load()
	}
	return t
}

func byValue(cells []cell, values []string) map[string]uint64 {
	out := map[string]uint64{}
	for i := range cells {
		if n := cells[i].Load(); n > 0 {
			out[values[i]] = n
		}
	}
	return out
}

func (s *series) totalReads() map[string]map[string]uint64 {
	out := map[string]map[string]uint64{}
	for i, verb := range verbs {
		row := s.reads[i*len(decisions) : (i+1)*len(decisions)]
		if counts := byValue(row, decisions[:]); len(counts) > 0 {
			out[verb] = counts
		}
	}
	return out
}
