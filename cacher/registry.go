// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"sync"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// registry knows all watchers, and which of them the dispatcher feeds. Its
// lock is held for bookkeeping only: never while sending or while another lock
// is taken.
type registry struct {
	metrics *metrics.Resource

	mu struct {
		sync.Mutex
		all    map[*watcher]struct{}
		groups map[groupKey]*group
		probes probes
		live   int
		// cursor is the position of the next event that the dispatcher will
		// dispatch, and rv the resourceVersion up to which it has.
		cursor watchcache.Position
		rv     uint64
		// sending is true while the dispatcher may send to watchers that were
		// live when it looked. Those that end meanwhile wait in ended, and the
		// dispatcher closes their channels.
		sending bool
		ended   []*watcher
		closed  bool
		// bookmarks are the watchers that are to get one, by when.
		bookmarks timeBuckets
	}
}

func newRegistry(m *metrics.Resource, probes probes) *registry {
	r := &registry{metrics: m}
	r.mu.all = make(map[*watcher]struct{})
	r.mu.groups = make(map[groupKey]*group)
	r.mu.probes = probes
	return r
}

// groupKey identifies what a group's watchers ask for.
type groupKey struct {
	key                  string
	recursive            bool
	label, field, shards string
}

// group is all watchers of one selection: an event is evaluated for them once.
type group struct {
	selected
	id groupKey
	// users counts the watchers of the group, live or not; guarded, as is the
	// rest, by registry.mu.
	users   int
	members []*watcher // the live ones
	// probed is where the group was registered while it has members.
	probed []probe
	// looked is the position of the last event that the group was looked at
	// for, so that it is looked at once however many probes lead to it.
	looked watchcache.Position
}

func groupKeyOf(s *selected) groupKey {
	id := groupKey{key: s.key, recursive: s.recursive}
	if s.predicate.Label != nil {
		id.label = s.predicate.Label.String()
	}
	if s.predicate.Field != nil {
		id.field = s.predicate.Field.String()
	}
	if s.predicate.ShardSelector != nil {
		id.shards = s.predicate.ShardSelector.String()
	}
	return id
}

// add makes w known as catching up, until quit is closed. It returns false if
// the registry is closed.
func (r *registry) add(w *watcher, s selected) (quit chan struct{}, ok bool) {
	id := groupKeyOf(&s)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return nil, false
	}
	g := r.mu.groups[id]
	if g == nil {
		g = &group{selected: s, id: id}
		r.mu.groups[id] = g
	}
	g.users++
	w.group = g
	w.quit = make(chan struct{})
	r.mu.all[w] = struct{}{}
	return w.quit, true
}

// goLive hands w over to the dispatcher if w, which has seen all before
// position, has seen all that was dispatched, and returns whether it did. A
// watcher may be ahead of the dispatcher; it then skips what it has seen.
func (r *registry) goLive(w *watcher, position watchcache.Position) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.position = position
	if w.ended || position < r.mu.cursor {
		return false
	}
	g := w.group
	if len(g.members) == 0 {
		g.probed = r.mu.probes.insert(g)
	}
	w.slot = len(g.members)
	g.members = append(g.members, w)
	w.live, w.quit = true, nil
	r.mu.live++
	return true
}

// park takes a live watcher from the dispatcher: it is to catch up from
// position, until quit is closed. It returns false if w has ended.
func (r *registry) park(w *watcher, position watchcache.Position) (quit chan struct{}, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.ended {
		return nil, false
	}
	r.unliveLocked(w)
	w.quit = make(chan struct{})
	w.position = position
	return w.quit, true
}

func (r *registry) unliveLocked(w *watcher) {
	g := w.group
	last := len(g.members) - 1
	moved := g.members[last]
	g.members[w.slot], moved.slot = moved, w.slot
	g.members[last] = nil
	g.members = g.members[:last]
	if last == 0 {
		r.mu.probes.remove(g)
		g.members, g.probed = nil, nil
	}
	w.live = false
	r.mu.live--
}

// end ends w, from any goroutine and any number of times. Who feeds w closes
// its channel: the dispatcher when it is done sending, or else w's goroutine;
// if nobody is sending, it is closed at once.
func (r *registry) end(w *watcher, reason string) {
	r.mu.Lock()
	if w.ended {
		r.mu.Unlock()
		return
	}
	closeNow := r.endLocked(w)
	release := w.release
	r.mu.Unlock()
	if closeNow {
		close(w.result)
	}
	if release != nil {
		release()
	}
	r.metrics.Ended(reason)
}

// endLocked returns whether the caller is to close w's channel.
func (r *registry) endLocked(w *watcher) bool {
	w.ended = true
	delete(r.mu.all, w)
	if w.bookmark != nil {
		w.bookmark.watcher = nil
	}
	g := w.group
	live := w.live
	if live {
		r.unliveLocked(w)
	}
	g.users--
	if g.users == 0 {
		delete(r.mu.groups, g.id)
	}
	switch {
	case !live:
		close(w.quit)
		return false
	case r.mu.sending:
		r.mu.ended = append(r.mu.ended, w)
		return false
	}
	return true
}

// close ends all watchers and takes no new ones.
func (r *registry) close() {
	r.mu.Lock()
	r.mu.closed = true
	all := make([]*watcher, 0, len(r.mu.all))
	for w := range r.mu.all {
		all = append(all, w)
	}
	r.mu.Unlock()
	for _, w := range all {
		r.end(w, endShutdown)
	}
}

// delivery is an event on its way to one watcher, by what it is to it.
type delivery struct {
	watcher *watcher
	outcome outcome
}

// begin looks up who is to be told of an event: from here to finish the
// dispatcher is sending. candidates is how many groups were evaluated.
func (r *registry) begin(e *watchcache.Event, to []delivery) (out []delivery, candidates int) {
	alike := selectsAlike(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.sending = true
	r.mu.cursor = e.Position + 1
	r.mu.probes.candidates(e, func(g *group) {
		candidates++
		o := g.outcome(e, alike)
		if o == unaffected {
			return
		}
		for _, w := range g.members {
			if e.RV > w.after && e.Position >= w.position {
				to = append(to, delivery{watcher: w, outcome: o})
			}
		}
	})
	return to, candidates
}

// beginAll returns all live watchers: from here to finish the dispatcher is
// sending.
func (r *registry) beginAll(to []*watcher) []*watcher {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.sending = true
	for w := range r.mu.all {
		if w.live {
			to = append(to, w)
		}
	}
	return to
}

// finish ends what begin began: the dispatcher sends nothing any more.
func (r *registry) finish() {
	r.mu.Lock()
	r.mu.sending = false
	ended := r.mu.ended
	r.mu.ended = nil
	r.mu.Unlock()
	for _, w := range ended {
		close(w.result)
	}
}

// dispatched notes up to which resourceVersion everything was dispatched.
func (r *registry) dispatched(rv uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.rv = rv
}

// restart moves the cursor to where the window begins now, because the events
// at the dispatcher's cursor are gone, and ends the live watchers that would
// have needed them. Those that have begun in the new window stay.
func (r *registry) restart(cursor watchcache.Position) {
	r.mu.Lock()
	r.mu.cursor = cursor
	var behind []*watcher
	for w := range r.mu.all {
		if w.live && w.position < cursor {
			behind = append(behind, w)
		}
	}
	r.mu.Unlock()
	for _, w := range behind {
		r.end(w, endRelist)
	}
}

// counts returns how many watchers are live and how many catch up.
func (r *registry) counts() (live, catchingUp int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.live, len(r.mu.all) - r.mu.live
}
