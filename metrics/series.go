// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math"
	"sync/atomic"
	"time"
)

// cell is the value of one series: a count, or the bits of a gauge's float64.
type cell = atomic.Uint64

// set makes v the value of a gauge.
func set(c *cell, v float64) { c.Store(math.Float64bits(v)) }

// series is what is counted of one identity while it is awake. The methods of
// Resource write to the fields without a lock, and the collectors read them when
// they are asked. The cells of a metric with labels lie in the order of the labels'
// values, the last label's closest together.
type series struct {
	objects       [1]cell
	bytes         [bytesPartsEnd]cell
	windowEvents  [1]cell
	windowSeconds [1]cell
	windowCut     [1]cell
	snapshots     [1]cell
	ready         [1]cell
	paused        [1]cell

	resourceVersion, oldestResourceVersion, storageResourceVersion cell

	events        [eventTypesEnd]cell
	dispatchLag   [1]lazyHistogram
	stageDuration [stagesEnd]lazyHistogram

	candidates, matches, evaluations, evaluationsSaved [1]cell
	delivered, initial                                 [1]cell
	encodings, encodingsShared                         [1]cell

	watchers            [watcherStatesEnd]cell
	lagEvents           [watcherRanksEnd]cell
	lagSeconds          [watcherRanksEnd]cell
	parkings            [1]cell
	resumptions         [1]cell
	expired             [1]cell
	beyondWindow        [1]cell
	ended               [endReasonsEnd]cell
	reads               [verbsEnd * Verb(decisionsEnd)]cell
	readDuration        [verbsEnd * Verb(decisionsEnd)]lazyHistogram
	readWait            [1]lazyHistogram
	staleReads          [staleAnswersEnd]cell
	byIndex             namedCounters
	evaluated           [1]cell
	listed              [1]cell
	versionRequests     [1]cell
	versionDuration     [versionResultsEnd]lazyHistogram
	versionRequestReads [1]cell

	relists       [relistCausesEnd]cell
	watchesBroken [1]cell
	undeliverable [1]cell
	consistency   [checkResultsEnd]cell

	// These are counted for the metrics of the shipped cacher alone, as far as
	// mirrored says so.
	mirrored                    atomic.Bool
	mirror                      mirror
	processed, dispatched       cell
	fillsFailed                 cell
	listsElsewhere, listsFailed [listFallbacksEnd]cell
	slots                       atomic.Int64
	grown, shrunk               cell

	// silence returns for how long nothing was heard of the storage; nil: not
	// known.
	silence atomic.Pointer[func() time.Duration]
}

// presence is what is counted of one identity whether it sleeps or not.
type presence struct {
	awake   atomic.Bool
	wokenUp cell
}

// pick returns the one of the cells or histograms for a label value, or that for
// other.
func pick[T any, V ~uint8](all []T, v V) *T {
	if int(v) >= len(all) {
		v = 0
	}
	return &all[v]
}

// pickRead returns the one of the cells or histograms for a kind of read.
func pickRead[T any](all *[verbsEnd * Verb(decisionsEnd)]T, verb Verb, decision Decision) *T {
	if verb == 0 || verb >= verbsEnd || decision == 0 || decision >= decisionsEnd {
		return &all[0]
	}
	return &all[int(verb)*int(decisionsEnd)+int(decision)]
}

// namedCounters are counters by names that are declared first, from the
// configuration of a cache. The map that is published is not written again.
type namedCounters struct {
	byName atomic.Pointer[map[string]*namedCounter]
}

// namedCounter counts reads by one index, and the objects that they looked at.
type namedCounter struct{ reads, evaluated cell }

// declare adds counters; those that there are keep their counts.
func (n *namedCounters) declare(names []string) {
	for {
		old := n.byName.Load()
		all := make(map[string]*namedCounter, len(names))
		if old != nil {
			for name, c := range *old {
				all[name] = c
			}
		}
		for _, name := range names {
			if all[name] == nil {
				all[name] = new(namedCounter)
			}
		}
		if n.byName.CompareAndSwap(old, &all) {
			return
		}
	}
}

// of returns the counter with the name, or that of other; nil if none was
// declared.
func (n *namedCounters) of(name string) *namedCounter {
	all := n.byName.Load()
	if all == nil {
		return nil
	}
	if c := (*all)[name]; c != nil {
		return c
	}
	return (*all)[other]
}

// each calls yield for each counter that is not 0.
func (n *namedCounters) each(yield func(name string, count uint64)) {
	all := n.byName.Load()
	if all == nil {
		return
	}
	for name, c := range *all {
		if count := c.reads.Load(); count > 0 {
			yield(name, count)
		}
	}
}

// eachList calls yield for each counter.
func (n *namedCounters) eachList(yield func(name string, count listed)) {
	all := n.byName.Load()
	if all == nil {
		return
	}
	for name, c := range *all {
		lists := c.reads.Load() // first: the objects of each are then counted
		yield(name, listed{lists, c.evaluated.Load()})
	}
}
