// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
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
	// backfillEvents bounds the events in front of the window, and backfillEventBytes
	// estimates the size of one without its object.
	backfillEvents     = 1 << 20
	backfillEventBytes = 416
	// backfillListed is by how much a list of all objects is cheaper, for each object,
	// than reading one by its key.
	backfillListed = 20
)

// errNoRoom: the window has no room for so much of the history.
var errNoRoom = own("the window has no room for it")

// backfill puts earlier events, read from storage, in front of the window, a piece at a
// time. So clients of another server, or without a recent bookmark, can resume here.
// Nothing is fetched before a watch asks for a version below the window. Concurrent
// requests share a piece that begins at the lowest of their versions; a later request
// from further back fetches the missing piece.
type backfill struct {
	// ctx ends with the engine, and before that once the state was listed again. Events
	// may have been missed before without a trace, so clients from before the list must
	// list as well, and the window must not reach back over it.
	ctx context.Context
	end context.CancelFunc
	mu  struct {
		sync.Mutex
		// gathering is the piece that further requests may extend, fetching the piece
		// that is being read. Either may be nil; if not both are, a goroutine fetches.
		gathering, fetching *piece
		// refused is a version below which no piece can be had until the time retry
		// on the timeline, because storage or the window have no room for it.
		refused uint64
		retry   time.Duration
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

// awaitBackfill has the history after the version rv put in front of the window, waits
// for that, and reports whether the window may reach further back than the caller has
// found.
func (e *engine) awaitBackfill(ctx context.Context, rv uint64) bool {
	p := e.joinPiece(rv)
	if p == nil {
		return false
	}
	flowcontrol.WatchInitialized(ctx) // a watch that waits must not hold a seat
	ctx, cancel := context.WithTimeout(ctx, backfillPatience)
	defer cancel()
	select {
	case <-p.done:
	case <-e.backfill.ctx.Done():
	case <-ctx.Done():
		return false
	}
	return true
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
	case b.ctx.Err() != nil:
		return nil
	case rv < b.mu.refused && e.time.Now() < b.mu.retry:
		return nil
	case f != nil && f.from <= rv:
		return f
	case b.mu.gathering != nil:
		b.mu.gathering.from = min(b.mu.gathering.from, rv)
		return b.mu.gathering
	}
	if b.mu.fetching == nil && !e.tasks.Run(e.fetchPieces) {
		return nil
	}
	b.mu.gathering = &piece{from: rv, done: make(chan struct{})}
	return b.mu.gathering
}

// fetchPieces gathers requests and fetches their piece, as long as there are any.
func (e *engine) fetchPieces() {
	b := &e.backfill
	for more := true; more; {
		select {
		case <-e.config.Clock.After(backfillGather):
		case <-b.ctx.Done():
		}
		b.mu.Lock()
		p := b.mu.gathering
		b.mu.gathering, b.mu.fetching = nil, p
		b.mu.Unlock()
		e.fetchPiece(p.from)
		b.mu.Lock()
		b.mu.fetching, more = nil, b.mu.gathering != nil
		b.mu.Unlock()
		close(p.done)
	}
}

// fetchPiece puts the history after a version in front of the window. A piece that
// storage has compacted, or for which the window has no room, is fetched from half as far
// back. Without the history, whatever is wrong, the cache serves as it would with it, and
// clients at earlier versions list.
func (e *engine) fetchPiece(wanted uint64) {
	b := &e.backfill
	ctx, cancel := context.WithTimeout(b.ctx, backfillTime)
	defer cancel()
	defer e.state.PinOldest()()
	var err error
	began, refused := e.time.Now(), uint64(0)
	for from := wanted; ; {
		_, oldest, _ := e.state.Reach()
		switch {
		case b.ctx.Err() != nil, from >= oldest && err == nil:
			return // no piece is of use, or it is there
		case from < oldest:
			err = e.backfillAfter(ctx, oldest, from)
		}
		if err == nil || from >= oldest {
			break
		}
		if ctx.Err() != nil || !(errors.Is(err, errNoRoom) || source.Expired(err)) {
			refused = oldest
			break
		}
		refused, from = from+1, from+(oldest-from+1)/2
	}
	if b.ctx.Err() != nil {
		return
	}
	if refused > 0 {
		b.mu.Lock()
		b.mu.refused, b.mu.retry = refused, e.time.Now()+e.config.EventsHistoryWindow
		b.mu.Unlock()
	}
	if e.logBackfill(wanted, e.time.Now()-began, err); err == nil {
		e.measure()
	}
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
		builder: e.newBuilder(), oldest: at, room: e.config.WindowBytes/2 - e.state.Stats().WindowBytes,
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
	if err := e.backfill.ctx.Err(); err != nil { // of an at from before the list, Backfill says the same
		return err
	}
	_, err = e.state.Backfill(at, from, p.changes, p.before, int64(e.time.Now()))
	return err
}

// readBefore reads the objects as they were before the changes, at a version at which
// storage had about so many objects.
func (e *engine) readBefore(ctx context.Context, p *past, version uint64, objects int) error {
	missing := p.missing()
	take := func(object runtime.Object) error { return p.takeBefore(object, missing) }
	switch {
	case len(missing) == 0:
		return e.source.StateAt(ctx, e.config.ResourcePrefix+"-", version, 0, take) // an error if the version is gone: no object has that key
	case len(missing) > objects/backfillListed:
		return e.source.StateAt(ctx, e.config.ResourcePrefix, version, listPageSize, take)
	}
	for key := range missing {
		if err := e.source.StateAt(ctx, key, version, 0, take); err != nil {
			return err
		}
	}
	return nil
}

// past holds the changes read from storage's history.
type past struct {
	builder *elementBuilder
	// oldest is the state that the history leads to.
	oldest  *watchcache.Snapshot
	changes []watchcache.Change
	// room is the estimated number of bytes that are left for changes.
	room int64
	// before has the elements, before the changes, of keys that have changed.
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
	p.room -= element.Size + backfillEventBytes
	if p.room < 0 || len(p.changes) > backfillEvents {
		return errNoRoom
	}
	return nil
}

// element returns the element of an event: that of the oldest state, if the object has
// not changed in between, so that it is not in memory twice.
func (p *past) element(event watch.Event, version uint64) (*watchcache.Element, error) {
	key, object, err := p.builder.key(event.Object)
	if err != nil {
		return nil, err
	}
	if _, lost := object.(capability.UnreadObject); lost {
		return nil, keyFaultf(nil, "the last state of %q, deleted at resourceVersion %d, can't be read", key, version)
	}
	if now := p.oldest.Get(key); now != nil && now.RV == version && event.Type != watch.Deleted {
		return now, nil
	}
	return p.builder.element(key, object)
}

// missing returns the keys that were there before the changes.
func (p *past) missing() map[string]bool {
	missing, seen := make(map[string]bool), make(map[string]bool)
	for _, c := range p.changes {
		key := c.Element.Key
		if !seen[key] && c.Type != watchcache.Added {
			missing[key] = true
		}
		seen[key] = true
	}
	return missing
}

// takeBefore takes an object that was there before the changes, if it is missing. Of several
// objects with one key it keeps the newest, as the state does.
func (p *past) takeBefore(object runtime.Object, missing map[string]bool) error {
	key, object, err := p.builder.key(object)
	if err != nil || !missing[key] {
		return err
	}
	element, err := p.builder.element(key, object)
	if err != nil {
		return err
	}
	if before := p.before[key]; before == nil || before.RV < element.RV {
		p.before[key] = element
	}
	return nil
}
