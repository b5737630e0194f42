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
	// backfillRevisions is the maximum distance of a backfill from the latest resourceVersion, half
	// the maximum lag of a resumed watch (cacher/internal/source): etcd reads all later writes of
	// every resource.
	backfillRevisions = 50_000
	// backfillGather is how long we gather requests for a piece.
	backfillGather = 20 * time.Millisecond
	// backfillPatience limits how long a watch waits for its piece, backfillTime how long we fetch
	// it.
	backfillPatience = 10 * time.Second
	backfillTime     = time.Minute
	// backfillEvents limits the events in front of the window. backfillEventBytes estimates the
	// size of one without its object.
	backfillEvents     = 1 << 20
	backfillEventBytes = 416
	// backfillListed is the cost of reading an object by key, relative to listing it.
	backfillListed = 20
)

var errNoRoom = own("the window has no room for it")

// backfill puts earlier events from storage in front of the window, so that clients of another
// server or without a recent bookmark can resume. We fetch a piece only if a watch needs it.
// Concurrent requests share the piece from the lowest of their versions; a later request from
// further back fetches the rest.
type backfill struct {
	*base
	storage *follower
	// untilListed ends with the engine, and before that once the state was listed again. Events
	// may have been missed before without a trace, so clients from before the list must
	// list as well, and the window must not reach back over it.
	untilListed context.Context
	end         context.CancelFunc
	mu          struct {
		sync.Mutex
		// gathering is the piece that requests may still extend, fetching the one being read. A
		// goroutine runs while either is set.
		gathering, fetching *piece
		// Below the version refused, we fetch nothing until retry (on the timeline).
		refused uint64
		retry   time.Duration
	}
}

// piece is the history from a version up to the start of the window.
type piece struct {
	from uint64
	done chan struct{} // closed when the window has the piece, or fetching failed
}

// hasHistory reports whether we can use storage's history, i.e. it is exact or refused. We can't
// for objects without a Go type, i.e. custom resources, because storage decodes them by their
// current definition: events would show objects as no client saw them, or call a conversion webhook
// for each.
func hasHistory(config *Config) bool {
	if _, untyped := config.NewFunc().(runtime.Unstructured); untyped {
		return false
	}
	k, ok := config.Storage.(capability.HistoryKeeper)
	return ok && k.KeepsHistory()
}

// await fetches the history after rv, and reports whether the window may now reach further
// back.
func (b *backfill) await(ctx context.Context, rv uint64) bool {
	p := b.join(rv)
	if p == nil {
		return false
	}
	flowcontrol.WatchInitialized(ctx) // frees the seat in priority and fairness
	ctx, cancel := context.WithTimeout(ctx, backfillPatience)
	defer cancel()
	select {
	case <-p.done:
	case <-b.untilListed.Done():
	case <-ctx.Done():
		return false
	}
	return true
}

// join returns the piece that will contain the version, or nil.
func (b *backfill) join(rv uint64) *piece {
	if !hasHistory(&b.config) || !b.storage.watchProgress() {
		return nil
	}
	if low := max(b.config.Storage.CompactRevision(), int64(b.state.RV())-backfillRevisions); int64(rv) < low {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch f := b.mu.fetching; {
	case b.untilListed.Err() != nil:
		return nil
	case rv < b.mu.refused && b.time.Now() < b.mu.retry:
		return nil
	case f != nil && f.from <= rv:
		return f
	case b.mu.gathering != nil:
		b.mu.gathering.from = min(b.mu.gathering.from, rv)
		return b.mu.gathering
	}
	if b.mu.fetching == nil && !b.tasks.Run(b.fetchPieces) {
		return nil
	}
	b.mu.gathering = &piece{from: rv, done: make(chan struct{})}
	return b.mu.gathering
}

func (b *backfill) fetchPieces() {
	for more := true; more; {
		select {
		case <-b.config.Clock.After(backfillGather):
		case <-b.untilListed.Done():
		}
		b.mu.Lock()
		p := b.mu.gathering
		b.mu.gathering, b.mu.fetching = nil, p
		b.mu.Unlock()
		b.fetchPiece(p.from)
		b.mu.Lock()
		b.mu.fetching, more = nil, b.mu.gathering != nil
		b.mu.Unlock()
		close(p.done)
	}
}

// fetchPiece puts the history after a version in front of the window. If storage compacted it or it
// does not fit, we try half of it. A failure only makes clients list.
func (b *backfill) fetchPiece(wanted uint64) {
	ctx, cancel := context.WithTimeout(b.untilListed, backfillTime)
	defer cancel()
	defer b.state.PinOldest()()
	var err error
	began, refused := b.time.Now(), uint64(0)
	for from := wanted; ; {
		_, oldest, _ := b.state.Reach()
		switch {
		case b.untilListed.Err() != nil, from >= oldest && err == nil:
			return // useless, or already in the window
		case from < oldest:
			err = b.fetchAfter(ctx, oldest, from)
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
	if b.untilListed.Err() != nil {
		return
	}
	if refused > 0 {
		b.mu.Lock()
		b.mu.refused, b.mu.retry = refused, b.time.Now()+b.config.EventsHistoryWindow
		b.mu.Unlock()
	}
	b.journal.backfilled(wanted, b.time.Now()-began, err)
}

// fetchAfter puts the history after from in front of the window, which begins at oldest.
func (b *backfill) fetchAfter(ctx context.Context, oldest, from uint64) error {
	at, err := b.state.AtUntil(ctx.Done(), oldest)
	if err != nil {
		return err
	}
	// Half of the window stays free for new events.
	p := &past{
		builder: newElementBuilder(b.base), oldest: at, room: b.config.WindowBytes/2 - b.state.Stats().WindowBytes,
		before: make(map[string]*watchcache.Element),
	}
	if err := b.storage.source.History(ctx, from, oldest, p.take); err != nil {
		return err
	}
	// If storage can still read the version that the watch began after, the watch was complete.
	if err := b.readBefore(ctx, p, from, at.Len()); err != nil {
		return err
	}
	if err := b.untilListed.Err(); err != nil { // of an at from before the list, Backfill says the same
		return err
	}
	_, err = b.state.Backfill(at, from, p.changes, p.before, int64(b.time.Now()))
	return err
}

// readBefore reads the changed objects as they were at version, among about the given number of
// objects.
func (b *backfill) readBefore(ctx context.Context, p *past, version uint64, objects int) error {
	missing := p.missing()
	take := func(object runtime.Object) error { return p.takeBefore(object, missing) }
	switch {
	case len(missing) == 0:
		return b.storage.source.StateAt(ctx, b.config.ResourcePrefix+"-", version, 0, take) // an error if the version is gone: no object has that key
	case len(missing) > objects/backfillListed:
		return b.storage.source.StateAt(ctx, b.config.ResourcePrefix, version, listPageSize, take)
	}
	for key := range missing {
		if err := b.storage.source.StateAt(ctx, key, version, 0, take); err != nil {
			return err
		}
	}
	return nil
}

type past struct {
	builder *elementBuilder
	// oldest is the state after the changes.
	oldest  *watchcache.Snapshot
	changes []watchcache.Change
	// room is the estimated number of bytes left for changes.
	room int64
	// before holds the previous elements of changed keys.
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

// element returns the element of an event, that of the oldest state if it is the same.
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

// missing returns the changed keys that existed before.
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

// takeBefore takes a previous object if its key is missing. Like the state, it keeps the newest
// object of a key.
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
