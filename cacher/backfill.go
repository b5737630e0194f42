// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/kube-watchcache/watchcache/cacher/internal/source"
	"github.com/kube-watchcache/watchcache/storage/capability"
	"github.com/kube-watchcache/watchcache/watchcache"
)

const (
	// backfillRevisions is how far below its latest resourceVersion a cache goes back,
	// half as many as for a watch of storage that broke (cacher/internal/source): etcd
	// reads all later writes, of every resource.
	backfillRevisions = 50_000
	// backfillGather is for how long requests are gathered that one piece will serve.
	backfillGather = 20 * time.Millisecond
	// backfillPatience bounds the time that a watch waits for its piece, and
	// backfillTime the time that a piece takes.
	backfillPatience = 10 * time.Second
	backfillTime     = time.Minute
	// backfillTries is how often a piece is fetched again when storage has compacted it
	// meanwhile.
	backfillTries = 3
	// backfillProbe follows the resource's prefix in a key that no object has.
	backfillProbe = "/-"
	// backfillEvents bounds the events in front of the window, and backfillEventBytes
	// estimates the size of one without its object.
	backfillEvents     = 1 << 20
	backfillEventBytes = 416
	// backfillListed is by how much a list of all objects is cheaper, for each object,
	// than reading one by its key.
	backfillListed = 20
)

// errNoHistory: storage has compacted everything before the window.
var errNoHistory = errors.New("the storage has compacted its earlier versions")

// backfill puts earlier events, read from storage, in front of the window, a piece at a
// time. So clients of another server, or without a recent bookmark, can resume here.
// Nothing is fetched before a watch asks for a version below the window. Concurrent
// requests share a piece that begins at the lowest of their versions; a later request
// from further back fetches the missing piece.
type backfill struct {
	mu struct {
		sync.Mutex
		// gathering is the piece that further requests may extend, fetching the piece
		// that is being read. Either may be nil.
		gathering, fetching *piece
		// refused is a version below which no piece can be had until the time retry
		// on the timeline, because storage or the window have no room for it.
		refused uint64
		retry   time.Duration
		// lists is how often the state was listed.
		lists int
		// cancel ends the fetching of a piece.
		cancel context.CancelFunc
	}
}

// piece is a part of the history, from a version up to the oldest of the window.
type piece struct {
	from uint64
	done chan struct{} // closed when the window has the piece, or nobody will get it
}

// hasHistory reports whether the storage has a history that the cache may use: its
// watches and lists of earlier versions are exact, until it refuses them. An object
// without a Go type, as custom resources are, has none. It is decoded by a definition
// that may have changed since, and nobody knows at which version: the events from
// before would show objects as their clients never saw them, or call a conversion
// webhook for each.
func hasHistory(config *Config) bool {
	if _, untyped := config.NewFunc().(runtime.Unstructured); untyped {
		return false
	}
	k, ok := config.Storage.(capability.HistoryKeeper)
	return ok && k.KeepsHistory()
}

// listed is called when the state was listed. The piece that is on its way leads to
// another one, and none is fetched any more: a cache that had to list again may have
// missed something without knowing it, so its clients list as well.
func (b *backfill) listed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.lists++
	if b.mu.cancel != nil {
		b.mu.cancel()
	}
}

// awaitBackfill has the history after the version rv put in front of the window, waits
// for that, and reports whether the window may reach further back than the caller has
// found.
func (e *engine) awaitBackfill(ctx context.Context, rv uint64) bool {
	p := e.joinPiece(rv)
	if p == nil {
		return false
	}
	flowcontrol.WatchInitialized(ctx) // a watch that waits must not hold a seat
	patience := e.config.Clock.NewTimer(backfillPatience)
	defer patience.Stop()
	select {
	case <-p.done:
		return true
	case <-patience.C():
	case <-ctx.Done():
	case <-e.ctx.Done():
		return true
	}
	return false
}

// joinPiece returns the piece that has the version, or nil if none can.
func (e *engine) joinPiece(rv uint64) *piece {
	if !hasHistory(&e.config) || !e.watchProgress() {
		return nil
	}
	if low := max(e.config.Storage.CompactRevision(), int64(e.state.RV())-backfillRevisions); int64(rv) < low {
		return nil
	}
	b := &e.backfill
	b.mu.Lock()
	defer b.mu.Unlock()
	switch f := b.mu.fetching; {
	case b.mu.lists > 1, rv < b.mu.refused && e.time.Now() < b.mu.retry:
		return nil
	case f != nil && f.from <= rv:
		return f
	case b.mu.gathering != nil:
		b.mu.gathering.from = min(b.mu.gathering.from, rv)
		return b.mu.gathering
	}
	p := &piece{from: rv, done: make(chan struct{})}
	b.mu.gathering = p
	if b.mu.fetching == nil && !e.tasks.Run(e.fetchPieces) {
		b.mu.gathering = nil
		return nil
	}
	return p
}

// fetchPieces fetches pieces as long as requests wait for one.
func (e *engine) fetchPieces() {
	for e.nextPiece() {
		b := &e.backfill
		b.mu.Lock()
		p := b.mu.fetching
		b.mu.Unlock()
		e.fetchPiece(p.from)
		close(p.done)
	}
}

// nextPiece gathers requests and makes their piece the one to fetch, or returns false.
func (e *engine) nextPiece() bool {
	b := &e.backfill
	b.mu.Lock()
	if b.mu.fetching = nil; b.mu.gathering == nil {
		b.mu.Unlock()
		return false
	}
	// Until it is fetched, requests below it join it.
	b.mu.fetching = &piece{from: math.MaxUint64}
	b.mu.Unlock()
	select {
	case <-e.config.Clock.After(backfillGather):
	case <-e.ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.fetching, b.mu.gathering = b.mu.gathering, nil
	return true
}

// fetchPiece puts the history after a version in front of the window, as far back as
// storage has it. Without the history, whatever is wrong, the cache serves as it would
// with it, and clients at earlier versions list.
func (e *engine) fetchPiece(from uint64) {
	ctx, cancel := context.WithTimeout(e.ctx, backfillTime)
	defer cancel()
	b := &e.backfill
	b.mu.Lock()
	b.mu.cancel = cancel
	b.mu.Unlock()
	defer e.state.PinOldest()()
	began, err := e.time.Now(), errNoHistory
	for range backfillTries {
		_, oldest, _ := e.state.Reach()
		if from >= oldest {
			return
		}
		var low uint64
		if low, err = e.backfillFrom(ctx, from, oldest); err == nil {
			err = e.backfillAfter(ctx, oldest, low)
		}
		if err == nil || ctx.Err() != nil || !source.Expired(source.Failure(err)) {
			break // what is not compacted meanwhile does not change
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	if _, oldest, _ := e.state.Reach(); oldest > from {
		b.mu.Lock()
		b.mu.refused, b.mu.retry = oldest, e.time.Now()+e.config.EventsHistoryWindow
		b.mu.Unlock()
	}
	if e.logBackfill(from, e.time.Now()-began, err); err == nil {
		e.measure()
	}
}

// backfillFrom returns the lowest version from the wanted one on that storage still has,
// below the oldest of the window, by reading a key that does not exist: once if storage
// still has the wanted version, else some sixteen times.
func (e *engine) backfillFrom(ctx context.Context, wanted, oldest uint64) (uint64, error) {
	gone, there := wanted, oldest
	for at := gone; gone < there; at = gone + (there-gone)/2 {
		err := e.source.ObjectAt(ctx, strings.TrimSuffix(e.config.ResourcePrefix, "/")+backfillProbe, at, func(runtime.Object) error { return nil })
		switch {
		case err == nil:
			there = at
		case source.Expired(source.Failure(err)):
			gone = at + 1
		default:
			return 0, err
		}
	}
	if there == oldest {
		return 0, errNoHistory
	}
	return there, nil
}

// backfillAfter puts the history between two versions in front of the window, which
// begins at the second one.
func (e *engine) backfillAfter(ctx context.Context, oldest, from uint64) error {
	at, err := e.state.AtUntil(ctx.Done(), oldest)
	if err != nil {
		return err
	}
	// Half of the window stays free for new events.
	p := &past{
		maker: e.newMaker(), oldest: at, from: from, most: e.config.WindowBytes/2 - e.state.Stats().WindowBytes,
		before: make(map[string]*watchcache.Element),
	}
	if err := e.source.History(ctx, from, oldest, p.take); err != nil {
		return err
	}
	// The version that the watch has begun after is read next. If storage still has it
	// then no event was missing from the watch.
	if err := e.readBefore(ctx, p, from, at.Len()); err != nil {
		return err
	}
	_, err = e.state.Backfill(at, p.from, p.changes, p.before, int64(e.time.Now()))
	return err
}

// readBefore reads the objects as they were before the changes, at a version at which
// storage had about so many objects.
func (e *engine) readBefore(ctx context.Context, p *past, version uint64, objects int) error {
	missing := p.missing()
	take := func(object runtime.Object) error { return p.takeBefore(object, missing) }
	switch {
	case len(missing) == 0:
		return e.source.StateAt(ctx, version, 1, 1, take)
	case len(missing) > objects/backfillListed:
		return e.source.StateAt(ctx, version, listPageSize, 0, take)
	}
	for key := range missing {
		if err := e.source.ObjectAt(ctx, key, version, take); err != nil {
			return err
		}
	}
	return nil
}

// past holds the changes read from storage's history. When they need more room than the
// window has, the oldest are dropped.
type past struct {
	maker *maker
	// oldest is the state that the history leads to.
	oldest *watchcache.Snapshot
	// The window will reach back to from; changes are the later ones.
	from    uint64
	changes []watchcache.Change
	// bytes estimates the size of the changes, most is its limit.
	bytes, most int64
	// before has the elements at from of some keys that have changed since, and of all
	// keys whose changes were dropped. nil: there was no such object.
	before map[string]*watchcache.Element
}

func (p *past) take(event watch.Event, version uint64) error {
	typ, ok := map[watch.EventType]watchcache.EventType{
		watch.Added: watchcache.Added, watch.Modified: watchcache.Modified, watch.Deleted: watchcache.Deleted,
	}[event.Type]
	if !ok {
		return fmt.Errorf("an event of type %q", event.Type)
	}
	element, err := p.element(event, version)
	if err != nil {
		return err
	}
	p.changes = append(p.changes, watchcache.Change{Type: typ, Element: element, RV: version})
	p.bytes += element.Size + backfillEventBytes
	for (p.bytes > p.most || len(p.changes) > backfillEvents) && p.changes[0].RV < version {
		p.letGo()
	}
	return nil
}

// element returns the element of an event: that of the oldest state, if the object has
// not changed in between, so that it is not in memory twice.
func (p *past) element(event watch.Event, version uint64) (*watchcache.Element, error) {
	k, err := p.maker.key(event.Object)
	if err != nil {
		return nil, err
	}
	if _, lost := k.object.(capability.UnreadObject); lost {
		return nil, keyFaultf(nil, "the last state of %q, deleted at resourceVersion %d, can't be read", k.key, version)
	}
	if now := p.oldest.Get(k.key); now != nil && now.RV == version && event.Type != watch.Deleted {
		return now, nil
	}
	return p.maker.element(k)
}

// letGo lets the first change go, and the others of its resourceVersion.
func (p *past) letGo() {
	for p.from = p.changes[0].RV; p.changes[0].RV == p.from; p.changes = p.changes[1:] {
		c := &p.changes[0]
		p.bytes -= c.Element.Size + backfillEventBytes
		p.before[c.Element.Key] = c.Element
		if c.Type == watchcache.Deleted {
			p.before[c.Element.Key] = nil
		}
		*c = watchcache.Change{}
	}
}

// missing returns the changed keys whose earlier element is unknown.
func (p *past) missing() map[string]bool {
	missing, seen := make(map[string]bool), make(map[string]bool)
	for _, c := range p.changes {
		key := c.Element.Key
		if _, known := p.before[key]; !known && !seen[key] && c.Type != watchcache.Added {
			missing[key] = true
		}
		seen[key] = true
	}
	return missing
}

// takeBefore takes an object that was there before the changes, if it is missing.
func (p *past) takeBefore(object runtime.Object, missing map[string]bool) error {
	k, err := p.maker.key(object)
	if err != nil || !missing[k.key] {
		return err
	}
	p.before[k.key], err = p.maker.element(k)
	return err
}
