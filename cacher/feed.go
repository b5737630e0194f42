// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher/internal/source"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// feed is the store that the Reflector writes to. The feed has the key and the
// attributes of each object computed, once, and applies the change to the state, and
// never waits for a watcher. All of it runs on the Reflector's goroutine, but for
// what fill does while storage brings its whole state.
//
// A change that can't be applied must not be skipped: the feed then takes
// nothing more and has the whole resource listed again.
type feed struct {
	config    *Config
	state     *watchcache.State
	time      timeline.Timeline
	metrics   *metrics.Resource
	readiness *readiness
	trust     *trust
	// heard is called with the time on the timeline when storage brings anything.
	heard func(now time.Duration)
	// whole reports whether each event counts as the last one of its
	// resourceVersion: the storage does not report the progress of its watch.
	whole func() bool
	// lastState returns the last state of an object that is gone, at the
	// resourceVersion rv.
	lastState func(e *watchcache.Element, rv uint64) *watchcache.Element

	// changed is called when the state has taken an event of the given
	// resourceVersion, progressed when it is complete up to one, and replaced
	// when it is that of a list.
	changed, progressed, replaced func(rv uint64)
	// skipped is called when a list continues the history, so that the
	// resourceVersions strictly between the two were not seen, or seen wrongly.
	skipped func(from, to uint64)
	// endWatches ends all watches with an ERROR event.
	endWatches func(failure watch.Event)
	// relist orders the Reflector to list again.
	relist func(why error)
	// warn and note are engine.warn and engine.noteError.
	warn func(kind, message string, err error, remedy string)
	note func(message string, err error)

	maker *maker
	// filled returns the fill of the state that the Reflector has listed, nil if
	// there is none.
	filled func() *fill
	// applied counts the changes, of which one of measuredEvery is measured.
	applied uint
	// broken is true from a change that could not be applied until the next
	// Replace.
	broken bool
}

var (
	_ cache.ReflectorStore         = (*feed)(nil)
	_ cache.ReflectorBookmarkStore = (*feed)(nil)
)

// Add implements cache.ReflectorStore.
func (f *feed) Add(obj any) error { return f.apply(watchcache.Added, obj) }

// Update implements cache.ReflectorStore.
func (f *feed) Update(obj any) error { return f.apply(watchcache.Modified, obj) }

// Delete implements cache.ReflectorStore.
func (f *feed) Delete(obj any) error { return f.apply(watchcache.Deleted, obj) }

// Resync implements cache.ReflectorStore. There is nothing to do:
// watchers are not told the same state again.
func (f *feed) Resync() error { return nil }

// eventTypes is what metrics call the types of events.
var eventTypes = [...]metrics.EventType{
	watchcache.Added:    metrics.EventAdded,
	watchcache.Modified: metrics.EventModified,
	watchcache.Deleted:  metrics.EventDeleted,
}

// measuredEvery is the distance of the changes whose time is measured: reading the
// clock for each one would take a tenth of it.
const measuredEvery = 16

func (f *feed) apply(typ watchcache.EventType, obj any) error {
	now := f.time.Now()
	f.heard(now)
	if f.broken {
		return nil
	}
	measured := f.applied%measuredEvery == 0
	f.applied++
	element, err := f.maker.changed(obj)
	if err != nil {
		f.fail(err)
		return nil
	}
	applied, err := f.state.Apply(watchcache.Change{
		Type: typ, Element: element, RV: element.RV, Received: int64(now),
		Whole: f.whole(),
	})
	switch {
	case err != nil:
		f.fail(err)
		return nil
	case applied.Event == nil:
		return nil // a resumed watch repeats what is not known to be complete
	}
	f.metrics.Event(eventTypes[typ])
	f.metrics.WindowCut(applied.Cut)
	if measured {
		f.metrics.StageTook(metrics.StageFeed, f.time.Now()-now)
	}
	f.changed(element.RV)
	return nil
}

// Bookmark implements cache.ReflectorBookmarkStore: the storage's word that
// the watch has brought everything up to a version.
func (f *feed) Bookmark(resourceVersion string) error {
	f.heard(f.time.Now())
	if f.broken {
		return nil
	}
	rv, err := f.config.Versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		f.fail(fmt.Errorf("a bookmark's resourceVersion %q: %w", resourceVersion, err))
		return nil
	}
	if err := f.state.Progress(rv); err != nil {
		f.fail(err)
		return nil
	}
	f.metrics.Event(metrics.EventBookmark)
	f.progressed(rv)
	return nil
}

// Replace implements cache.ReflectorStore: the whole state is there. The source has
// given its objects to a fill, so that the Reflector has none of them.
func (f *feed) Replace(_ []any, resourceVersion string) error {
	f.heard(f.time.Now())
	fill := f.filled()
	if fill == nil {
		return fmt.Errorf("the list of %s at resourceVersion %q was not kept", f.config.GroupResource, resourceVersion)
	}
	rv, err := f.config.Versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return fmt.Errorf("a list's resourceVersion %q: %w", resourceVersion, err)
	}
	elements, err := fill.elements()
	if err != nil {
		f.readiness.failed(err)
		f.warn("replace", "The listed objects could not be taken into the watch cache. It goes on with what it has and lists again", err, remedyFunction)
		return err
	}
	if !f.carry(elements, rv) {
		if f.trust.doubtful.Load() {
			// A client that has got a bookmark beyond what it has missed would
			// resume there: it must list.
			f.endWatches(source.Failure(expiredError(errInconsistent)))
		}
		if n := f.state.Replace(elements, rv); n > 0 {
			f.warn("keys", "Listed objects share their keys with others. The watch cache has one object for each key",
				fmt.Errorf("%d listed objects of %s share a key with another one", n, f.config.GroupResource), remedyFunction)
		}
	}
	f.broken = false
	f.replaced(rv)
	return nil
}

// carry takes a list as a continuation of the history so far, if that is
// configured and the list allows it.
func (f *feed) carry(elements []*watchcache.Element, rv uint64) bool {
	if !f.config.CarryWatchersOverRelist || !f.readiness.ready() {
		return false
	}
	from := f.state.RV()
	if f.trust.doubtful.Load() {
		// Clients that have got their state elsewhere may have what this one has
		// missed: those that have begun at a resourceVersion are not carried.
		from = 0
		f.state.HideBefore(rv)
	}
	_, err := f.state.Carry(elements, rv, int64(f.time.Now()), func(e *watchcache.Element) *watchcache.Element {
		return f.lastState(e, rv)
	})
	if err != nil {
		f.note("Watchers could not be carried over a list. They are ended", fmt.Errorf("the watchers of %s could not be carried over a list: %w", f.config.GroupResource, err))
		return false
	}
	f.skipped(from, rv)
	return true
}

// fail refuses a change and everything after it, until all is listed again. The
// Reflector is not told: it would log the object, which may be a secret, and
// continue as if nothing had happened.
func (f *feed) fail(err error) {
	err = fmt.Errorf("a change of %s could not be applied: %w", f.config.GroupResource, err)
	f.broken = true
	if errors.Is(err, watchcache.ErrGap) || errors.Is(err, watchcache.ErrBackwards) {
		f.trust.distrust() // events were missed: what is there is wrong
	}
	f.warn("apply", "A change could not be applied. The watch cache takes nothing more until it has listed its storage again", err, remedyFunction)
	f.relist(err)
}
