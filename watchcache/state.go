// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Config sizes a State.
type Config struct {
	// History is for how long the window keeps an event at least, as far as
	// WindowBytes allows.
	History time.Duration
	// WindowBytes bounds what the window alone keeps in memory. Events that
	// were not dispatched yet stay even above it (W6).
	WindowBytes int64
	// MinEvents is how many events stay however old they are, so that clients
	// of a quiet resource can resume after a long time.
	MinEvents int
	// Indexes are kept for reads by value. Names are unique.
	Indexes []Index
}

// State is the current state of one resource and the window of its recent
// changes. One writer calls Apply, Replace, Progress and Compacted; all other
// methods are safe for concurrent use with it and with each other.
type State struct {
	config Config

	// mu is the writer lock. Nothing blocks while it is held, and no other
	// lock is taken under it.
	mu struct {
		sync.RWMutex
		trees  trees
		window window
		// rv is the resourceVersion that the state shows; complete is the
		// highest one that the source declared complete: no event at or below
		// it may come any more.
		rv, complete uint64
		// interruptions are those that the window still reaches back to.
		interruptions []interruption
		// compacted is the highest resourceVersion that the source is known
		// to have compacted: versions below it can't be read there.
		compacted uint64
		bytes     int64 // of all elements in trees
		// cloned tells that the trees in latest are clones that no write has
		// left behind yet.
		cloned bool
		// exact keeps the snapshots that At has made since the last Replace.
		// Replace leaves it to the readers that it overtakes and starts
		// another, so that no reader gets a snapshot of a history that it has
		// seen end.
		exact *exactSnapshots
		// scratch is where setElementLocked gathers index values.
		scratch [valuesRoom]string
	}

	// latest is the newest snapshot, nil after any change.
	latest atomic.Pointer[Snapshot]
	// last is the snapshot whose trees are shared while mu.cloned; guarded by mu.
	last *Snapshot
	// dispatched is the position up to which events were dispatched.
	dispatched atomic.Uint64
	// now is the newest time that the caller has told, in Unix nanoseconds.
	now atomic.Int64
}

// New returns an empty state at resourceVersion 0; Replace fills it.
func New(config Config) *State {
	s := &State{config: config}
	s.mu.trees = newTrees(len(config.Indexes))
	s.mu.window = window{ring: make([]*Event, minRing)}
	s.mu.exact = new(exactSnapshots)
	return s
}

// Change is what the source says has happened. See Event for its parts.
type Change struct {
	Type               EventType
	Element            *Element
	RV                 uint64
	Recorded, Received int64
}

// Applied says what a change, or a Trim, has done to the window.
type Applied struct {
	// Event is the event that a change became; nil for Trim.
	Event *Event
	// Evicted is how many old events left the window.
	Evicted int
	// Resized tells that the window's ring grew or shrank.
	Resized bool
}

// Apply takes one change. It refuses with ErrBackwards a resourceVersion below
// one already seen or declared complete, and with ErrGap a change that does
// not fit its key's state; the state is then as before. The element is the
// state's from then on.
func (s *State) Apply(c Change) (Applied, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.RV < s.mu.rv || c.RV <= s.mu.complete {
		return Applied{}, fmt.Errorf("%s of %q at resourceVersion %d after %d: %w",
			c.Type, c.Element.Key, c.RV, s.mu.rv, ErrBackwards)
	}
	found, _ := s.mu.trees.primary.Get(item{key: c.Element.Key})
	previous := found.element
	if err := c.fits(previous); err != nil {
		return Applied{}, err
	}
	e := &Event{
		RV: c.RV, Type: c.Type, Element: c.Element, Previous: previous,
		Recorded: c.Recorded, Received: c.Received,
	}
	if previous != nil {
		c.Element.share(previous)
	}
	c.Element.seal()
	s.setRVLocked(c.RV)
	s.setElementLocked(e)
	applied := Applied{Event: e, Resized: s.mu.window.push(e)}
	s.tick(c.Received)
	s.trimLocked(&applied)
	return applied, nil
}

// fits tells whether the change can follow on what its key holds.
func (c Change) fits(previous *Element) error {
	switch {
	case c.Type < Added || c.Type > Deleted:
		return gap(c, fmt.Sprintf("type %d is none", c.Type))
	case c.Element.RV != c.RV:
		return gap(c, fmt.Sprintf("the object is at resourceVersion %d", c.Element.RV))
	case c.Type == Added && previous != nil:
		return gap(c, "the key exists")
	case c.Type != Added && previous == nil:
		return gap(c, "there is no such key")
	case previous != nil && previous.RV >= c.RV:
		return gap(c, fmt.Sprintf("the key is at resourceVersion %d already", previous.RV))
	}
	return nil
}

// setElementLocked makes the event's outcome the current state of its key.
func (s *State) setElementLocked(e *Event) {
	after := e.Element
	if e.Type == Deleted {
		after = nil
	}
	if e.Previous != nil {
		e.Previous.checkSeal()
		s.mu.bytes -= e.Previous.bytes()
	}
	if after != nil {
		s.mu.bytes += after.bytes()
	}
	s.mu.trees.set(s.config.Indexes, after, e.Previous, s.mu.scratch[:0])
	s.mu.cloned, s.last = false, nil
}

// setRVLocked moves the resourceVersion forward (W1).
func (s *State) setRVLocked(rv uint64) {
	assert(rv >= s.mu.rv, "W1", "resourceVersion falls from %d to %d", s.mu.rv, rv)
	s.mu.rv = rv
	s.latest.Store(nil)
}

// Progress takes the source's word that nothing at or below rv will follow. It
// refuses with ErrBackwards a resourceVersion below the state's own.
func (s *State) Progress(rv uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rv < s.mu.rv {
		return fmt.Errorf("progress at resourceVersion %d after %d: %w", rv, s.mu.rv, ErrBackwards)
	}
	s.mu.complete = rv
	if rv > s.mu.rv {
		s.setRVLocked(rv)
	}
	return nil
}

// Replace makes elements the whole state, at rv, which may be lower than
// before: the source may have been restored from a backup. The window starts
// anew, and every position given out before is gone. Of two elements with one
// key the one with the higher RV stays, of equal ones the last; the number of
// others is returned.
func (s *State) Replace(elements []*Element, rv uint64) (duplicates int) {
	built := newTrees(len(s.config.Indexes))
	var bytes int64
	scratch := make([]string, 0, valuesRoom)
	// Lists come in the order of their keys. Filled from the end, the trees
	// take half the memory: nodes are split where they have no room to spare.
	for _, e := range slices.Backward(elements) {
		found, exists := built.primary.Get(item{key: e.Key})
		if exists {
			duplicates++
			if found.element.RV >= e.RV {
				continue
			}
			bytes -= found.element.bytes()
		}
		e.seal()
		built.set(s.config.Indexes, e, found.element, scratch)
		bytes += e.bytes()
	}

	s.mu.Lock()
	s.mu.trees, s.mu.bytes = built, bytes
	s.mu.rv, s.mu.complete, s.mu.compacted = rv, rv, 0
	s.mu.window.reset(rv)
	s.mu.cloned, s.last = false, nil
	s.mu.exact = new(exactSnapshots)
	s.mu.interruptions = nil
	s.latest.Store(nil)
	s.mu.Unlock()
	return duplicates
}

// Compacted takes the source's word that versions below rv are compacted:
// from now on At refuses them, as the source itself would.
func (s *State) Compacted(rv uint64) {
	s.mu.Lock()
	s.mu.compacted = max(s.mu.compacted, rv)
	exact := s.mu.exact
	s.mu.Unlock()
	exact.drop(func(e *exactSnapshot) bool { return e.rv < rv })
}

// Dispatched tells that all events before p were dispatched and may leave the
// window when their time has come (W6).
func (s *State) Dispatched(p Position) { s.dispatched.Store(uint64(p)) }

// Trim evicts what has aged, as of now in Unix nanoseconds. The caller calls
// it now and then, so that the window shrinks also when nothing happens.
func (s *State) Trim(now int64) Applied {
	var applied Applied
	s.tick(now)
	s.mu.Lock()
	s.trimLocked(&applied)
	exact := s.mu.exact
	s.mu.Unlock()
	idle := now - int64(s.config.History)
	exact.drop(func(e *exactSnapshot) bool { return e.used < idle })
	return applied
}

func (s *State) tick(now int64) {
	for last := s.now.Load(); now > last && !s.now.CompareAndSwap(last, now); {
		last = s.now.Load()
	}
}

// trimLocked evicts what is too much or too old, but nothing undispatched.
func (s *State) trimLocked(applied *Applied) {
	w := &s.mu.window
	aged := s.now.Load() - int64(s.config.History)
	dispatched := Position(s.dispatched.Load())
	assert(dispatched <= w.next, "W6", "dispatched up to %d, the next event is %d", dispatched, w.next)
	for w.len() > 0 && w.first < dispatched {
		oldest := w.at(w.first)
		tooMuch := w.bytes > s.config.WindowBytes && w.len() > 1
		tooOld := w.len() > s.config.MinEvents && oldest.Received < aged
		if !tooMuch && !tooOld {
			break
		}
		oldest.Element.checkSeal()
		w.evict()
		applied.Evicted++
	}
	if applied.Evicted > 0 && w.shrink() {
		applied.Resized = true
	}
}
