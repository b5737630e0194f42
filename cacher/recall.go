// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/source"
	"github.com/kube-watchcache/watchcache/watchcache"
)

const (
	// recallRevisions is how many resourceVersions a cache goes back when it starts,
	// half as many as a watch of storage that broke (cacher/internal/source): etcd
	// reads what was written since, of every resource.
	recallRevisions = 50_000
	// recallTries is how often the cache tries again when storage has compacted the
	// history meanwhile.
	recallTries = 3
	// recallProbe follows the resource's prefix in a key that no object has.
	recallProbe = "/-"
	// recallTime bounds the time that this takes: less than the default of
	// EventsHistoryWindow, after which the window has moved on. recallPatience bounds the
	// time in which watches from earlier versions wait.
	recallTime     = time.Minute
	recallPatience = 10 * time.Second
	// recallEvents is how many events may be put in front of the window, and
	// recallEventBytes what each takes beside its object, about.
	recallEvents     = 1 << 20
	recallEventBytes = 416
	// recallListed is by how much a list of all objects is cheaper, for each object,
	// than reading one by its key.
	recallListed = 20
)

// errNoHistory: storage has compacted everything before the list.
var errNoHistory = errors.New("the storage has compacted what was written before")

// keepsHistory reports whether the storage says that it tells what it has of its
// history exactly: by watches and lists of earlier versions, until it refuses them.
func keepsHistory(s storage.Interface) bool {
	k, ok := s.(interface{ KeepsHistory() bool })
	return ok && k.KeepsHistory()
}

// beginRecall begins to put what storage has of the time before its first list in
// front of the window, so that clients of another server, and those that a server has
// left without a bookmark, resume here. The cache serves meanwhile. Only watches from
// versions that the window does not have wait for the end (awaitRecall).
//
// The Reflector's goroutine calls beginRecall, before the cache is ready and before
// any event is applied.
func (e *engine) beginRecall() {
	if e.hasListed || !keepsHistory(e.config.Storage) || !e.watchProgress() {
		e.hasListed = true
		return
	}
	e.hasListed = true
	ctx, cancel := context.WithTimeout(e.ctx, recallTime)
	waiting, end := context.WithTimeout(ctx, recallPatience)
	e.recalling = waiting
	listed := e.state.Latest()
	if !e.tasks.Run(func() {
		defer cancel()
		defer end()
		e.recall(ctx, listed)
	}) {
		end()
		cancel()
	}
}

// awaitRecall waits until the window reaches back as far as it will, and reports
// whether it may reach further than the caller has found.
func (e *engine) awaitRecall(ctx context.Context) bool {
	if e.recalling == nil {
		return false
	}
	select {
	case <-e.recalling.Done():
		return true
	case <-ctx.Done():
		return false
	}
}

// recall puts the history in front of the window, as far back as storage has it.
// Without the history, whatever is wrong, the cache serves as it would with it, and
// clients at earlier versions list.
func (e *engine) recall(ctx context.Context, listed *watchcache.Snapshot) {
	if listed.RV() <= 1 {
		return // nothing was ever written
	}
	began, err := e.time.Now(), errNoHistory
	for range recallTries {
		var from uint64
		if from, err = e.recallFrom(ctx, listed.RV()); err == nil {
			err = e.recallAfter(ctx, listed, from)
		}
		if err == nil || ctx.Err() != nil || !source.Expired(source.Failure(err)) {
			break // what is not compacted meanwhile does not change
		}
	}
	if e.ctx.Err() != nil {
		return
	}
	if e.tellRecalled(listed, e.time.Now()-began, err); err == nil {
		e.measure()
	}
}

// recallFrom returns the lowest version that storage still has, if it is not too far
// before the listed one. Some sixteen reads of a key that is not there find it, or one
// if storage has everything or tells what it has compacted.
func (e *engine) recallFrom(ctx context.Context, listed uint64) (uint64, error) {
	gone, there := listed-min(recallRevisions, listed-1), listed
	if compacted := e.config.Storage.CompactRevision(); compacted > 0 {
		gone = min(max(gone, uint64(compacted)), listed)
	}
	for at := gone; gone < there; at = gone + (there-gone)/2 {
		err := e.source.ObjectAt(ctx, strings.TrimSuffix(e.config.ResourcePrefix, "/")+recallProbe, at, func(runtime.Object) error { return nil })
		switch {
		case err == nil:
			there = at
		case source.Expired(source.Failure(err)):
			gone = at + 1
		default:
			return 0, err
		}
	}
	if there == listed {
		return 0, errNoHistory
	}
	return there, nil
}

// recallAfter puts the history after a version in front of the window.
func (e *engine) recallAfter(ctx context.Context, listed *watchcache.Snapshot, from uint64) error {
	// Half of the window stays free, so that a cache that has just started takes no more
	// memory than later.
	p := &past{maker: e.newMaker(), listed: listed, from: from, most: e.config.WindowBytes / 2, before: make(map[string]*watchcache.Element)}
	if err := e.source.History(ctx, from, listed.RV(), p.take); err != nil {
		return err
	}
	// The version that the watch has begun after is read next. If storage still has it
	// then no event was missing from the watch.
	if err := e.recallBefore(ctx, p, from, listed.Len()); err != nil {
		return err
	}
	_, err := e.state.Recall(listed, p.from, p.changes, p.before, int64(e.time.Now()))
	return err
}

// recallBefore reads what was there before the changes, at a version at which storage
// had some number of objects, about.
func (e *engine) recallBefore(ctx context.Context, p *past, version uint64, objects int) error {
	missing := p.missing()
	take := func(object runtime.Object) error { return p.takeBefore(object, missing) }
	switch {
	case len(missing) == 0:
		return e.source.StateAt(ctx, version, 1, 1, take)
	case len(missing) > objects/recallListed:
		return e.source.StateAt(ctx, version, listPageSize, 0, take)
	}
	for key := range missing {
		if err := e.source.ObjectAt(ctx, key, version, take); err != nil {
			return err
		}
	}
	return nil
}

// past is what storage has told of its history, no more than the window has room for:
// of what is too much, the oldest is let go.
type past struct {
	maker *maker
	// listed is the state that the history leads to.
	listed *watchcache.Snapshot
	// The window will reach back to from. changes are those that came after.
	from    uint64
	changes []watchcache.Change
	// bytes is what the changes take, about, and most what they may.
	bytes, most int64
	// before is what keys were at from: of some that have changed since, and of all
	// whose changes were let go. nil: there was no such object.
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
	p.bytes += element.Size + recallEventBytes
	for (p.bytes > p.most || len(p.changes) > recallEvents) && p.changes[0].RV < version {
		p.letGo()
	}
	return nil
}

// element returns the element of an event: that of the list, if the object has not
// changed since, so that it is not in memory twice.
func (p *past) element(event watch.Event, version uint64) (*watchcache.Element, error) {
	k, err := p.maker.key(event.Object)
	if err != nil {
		return nil, err
	}
	if now := p.listed.Get(k.key); now != nil && now.RV == version && event.Type != watch.Deleted {
		return now, nil
	}
	return p.maker.changedElement(k)
}

// letGo lets the first change go, and the others of its resourceVersion.
func (p *past) letGo() {
	for p.from = p.changes[0].RV; p.changes[0].RV == p.from; p.changes = p.changes[1:] {
		c := &p.changes[0]
		p.bytes -= c.Element.Size + recallEventBytes
		p.before[c.Element.Key] = c.Element
		if c.Type == watchcache.Deleted {
			p.before[c.Element.Key] = nil
		}
		*c = watchcache.Change{}
	}
}

// missing returns the keys of which it is not known what they were before their
// changes.
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
	p.before[k.key], err = p.maker.listed(object, nil)
	return err
}
