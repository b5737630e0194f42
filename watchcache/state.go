// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Config sizes a State.
type Config struct {
	// History is how long the window keeps an event at least, as far as
	// WindowBytes allows.
	History time.Duration
	// WindowBytes bounds the memory, in bytes, that the window keeps beyond the
	// current state, but for events that were not dispatched yet (W6).
	WindowBytes int64
	// HeldBytes is WindowBytes for events that Hold asks for, if larger.
	HeldBytes int64
	// CeilingBytes is WindowBytes for events that were not dispatched, if larger. Only the
	// tail stays in any case. 0 means no ceiling.
	CeilingBytes int64
	// MinEvents is the number of events that stay however old they are, so that
	// clients of a quiet resource can resume after a long time.
	MinEvents int
	// BackfillEvents is how many events Backfill may put in front of the window.
	BackfillEvents int
	// Indexes are for reads by value. Their names must be unique.
	Indexes []Index
	// Floors are the attributes by whose values the state remembers which events have
	// left the window, for readers with an Interest. Their Values depend on keys, labels and
	// fields only. FloorValues is how many values are remembered of each.
	Floors      []Index
	FloorValues int
}

// State is the current state of one resource and the window of its recent
// changes. One writer calls Apply, Replace, Progress and Compacted; all other
// methods are safe for concurrent use with it and with each other.
type State struct {
	config Config

	// replacing is held while Replace works, so that no index is added or dropped
	// meanwhile; mu is taken under it.
	replacing sync.Mutex
	// mu is the writer lock. Nothing blocks while it is held, and of other locks only
	// keptSnapshots.mu is taken under it.
	mu struct {
		sync.RWMutex
		trees  trees
		window window
		floors floors
		// rv is the highest resourceVersion that the source has reported, and complete the
		// one that the state shows: rv, or rv-1 while events at rv may follow, which are
		// then the tail. closed is the highest one that the source declared complete: no
		// event at or below it may come any more.
		rv, complete, closed uint64
		// compacted is the highest resourceVersion that the source is known to have
		// compacted: lower versions can't be read there.
		compacted uint64
		bytes     int64 // of all elements in trees
		// kept has the earlier versions that were asked for since the last Replace, which
		// starts another one: no later reader gets a snapshot of a history that has ended.
		kept *keptSnapshots
		// scratch is where trees and floors gather values.
		scratch [valuesRoom]string
	}

	// latest is the snapshot at complete, nil after any change of its content.
	// withTail is the snapshot of the trees, with the tail, nil after any change of
	// them.
	latest, withTail atomic.Pointer[Snapshot]
	// published is a clone of the trees, nil after any change of them; guarded by mu.
	published *base
	// dispatched is the position after the last dispatched event.
	dispatched atomic.Uint64
	// pinned is how often PinOldest is in effect.
	pinned atomic.Int64
	// held is the position given to Hold, the highest for none.
	held atomic.Uint64
	// now is the latest time that the caller has passed in; see Event.Received.
	now atomic.Int64
}

// New returns an empty state at resourceVersion 0; Replace fills it.
func New(config Config) *State {
	config.HeldBytes = max(config.WindowBytes, config.HeldBytes)
	config.CeilingBytes = max(config.WindowBytes, cmp.Or(config.CeilingBytes, math.MaxInt64))
	s := &State{config: config}
	s.ReleaseHold()
	s.mu.trees, _ = build(config.Indexes, nil)
	s.mu.window.ring = make([]*Event, minRing)
	s.mu.floors = newFloors(len(config.Floors), 0)
	s.mu.kept = new(keptSnapshots)
	return s
}

// Change is one change as the source reports it. See Event for the fields that
// both have.
type Change struct {
	Type     EventType
	Element  *Element
	RV       uint64
	Received int64
	// Whole makes the state show the change's resourceVersion at once, because the source
	// does not report where one ends. Further changes at it are still accepted.
	Whole bool
}

// Applied is the effect of a change, or of a Trim, on the window.
type Applied struct {
	// Event is made of the change; nil for Trim, and for a change that was applied before.
	Event *Event
	// Evicted is how many old events left the window, and Cut how many of them
	// for their size, before they were as old as Config.History.
	Evicted, Cut int
}

// Apply takes one change, which the state shows once its resourceVersion is complete. A
// change at the last resourceVersion that is in the window already is ignored: a source
// that is followed from the last complete resourceVersion repeats such changes.
//
// Apply returns ErrBackwards for a resourceVersion below one already seen or
// declared complete, and ErrGap for a change that does not fit its key's state;
// the state is then as before. The caller must not write to the element any
// more.
func (s *State) Apply(c Change) (Applied, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.RV < s.mu.rv || c.RV <= s.mu.closed {
		return Applied{}, fmt.Errorf("%s of %q at resourceVersion %d after %d: %w",
			c.Type, c.Element.Key, c.RV, s.mu.rv, ErrBackwards)
	}
	previous := s.mu.trees.primary.get(0, c.Element.Key)
	if err := c.fits(previous); err != nil {
		if s.appliedLocked(c) {
			return Applied{}, nil
		}
		return Applied{}, err
	}
	e := &Event{
		RV: c.RV, Type: c.Type, Late: c.RV == s.mu.complete, Element: c.Element, Previous: previous, Received: c.Received,
	}
	if previous != nil {
		c.Element.share(previous)
	}
	c.Element.seal()
	s.advanceLocked(c.RV, c.Whole)
	s.mu.bytes += s.mu.trees.apply(e, s.mu.scratch[:0])
	s.changedLocked()
	s.mu.window.push(e)
	s.tick(c.Received)
	applied := s.trimLocked()
	applied.Event = e
	return applied, nil
}

// fits returns an error if the change can't follow previous, the element that
// its key holds.
func (c Change) fits(previous *Element) error {
	switch {
	case c.Type < Added || c.Type > Deleted:
		return gap(c, fmt.Sprintf("type %d is not a type of change", c.Type))
	case c.Element.RV != c.RV:
		return gap(c, fmt.Sprintf("the object is at resourceVersion %d", c.Element.RV))
	case c.Type == Added && previous != nil:
		return gap(c, "the key already exists")
	case c.Type != Added && previous == nil:
		return gap(c, "there is no such key")
	case previous != nil && previous.RV >= c.RV:
		return gap(c, fmt.Sprintf("the key is already at resourceVersion %d", previous.RV))
	}
	return nil
}

// changedLocked drops what was made of the trees before they changed.
func (s *State) changedLocked() {
	s.published = nil
	s.withTail.Store(nil)
}

// Progress declares that the source will send no more changes at or below rv. The error
// is ErrBackwards if rv is below the state's resourceVersion.
func (s *State) Progress(rv uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case rv < s.mu.complete:
		return fmt.Errorf("progress at resourceVersion %d after %d: %w", rv, s.mu.complete, ErrBackwards)
	case rv >= s.mu.rv:
		s.completeLocked(rv)
	}
	s.mu.closed = rv
	return nil
}

// Replace makes elements the whole state, at rv, which may be lower than before: the
// source may have been restored from a backup. The window is emptied, and every position
// given out before is gone. Of two elements with the same key the one with the higher RV
// stays, of equal ones the last; duplicates is the number of elements left out.
func (s *State) Replace(elements []*Element, rv uint64) (duplicates int) {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	trees, bytes := build(s.mu.trees.indexes, elements) // which nobody else writes to meanwhile

	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.window.superseded += s.mu.bytes
	s.mu.trees, s.mu.bytes = trees, bytes
	s.mu.rv, s.mu.complete, s.mu.closed, s.mu.compacted = rv, rv, rv, 0
	s.mu.window.reset(rv, s.now.Load(), s.config.BackfillEvents)
	s.mu.floors = newFloors(len(s.config.Floors), rv)
	s.mu.kept = new(keptSnapshots)
	s.changedLocked()
	s.latest.Store(nil)
	return len(elements) - trees.primary.length
}

// Compacted makes At return ErrCompacted for the versions below rv, as the source does.
func (s *State) Compacted(rv uint64) {
	s.mu.Lock()
	s.mu.compacted = max(s.mu.compacted, rv)
	kept := s.mu.kept
	s.mu.Unlock()
	kept.drop(func(e *keptSnapshot) bool { return e.rv < rv })
}

// Dispatched lets the events before p leave the window when they are old enough (W6).
func (s *State) Dispatched(p Position) { s.dispatched.Store(uint64(p)) }

// Trim evicts events that are older than Config.History at now; see Event.Received for
// the unit. Call Trim from time to time, also when no changes come.
func (s *State) Trim(now int64) Applied {
	s.tick(now)
	s.mu.Lock()
	applied := s.trimLocked()
	kept := s.mu.kept
	s.mu.Unlock()
	idle := now - int64(s.config.History)
	kept.drop(func(e *keptSnapshot) bool { return e.used < idle })
	return applied
}

func (s *State) tick(now int64) {
	for last := s.now.Load(); now > last && !s.now.CompareAndSwap(last, now); {
		last = s.now.Load()
	}
}

// trimLocked evicts events that are too many or too old, but none of the tail, with
// which the latest snapshot is made.
func (s *State) trimLocked() (applied Applied) {
	w := &s.mu.window
	aged := s.now.Load() - int64(s.config.History)
	dispatched := Position(s.dispatched.Load())
	assert(dispatched <= w.next, "W6", "dispatched up to %d, the next event is %d", dispatched, w.next)
	for w.len() > 0 {
		// A revision leaves as a whole, so that the window begins between two: a snapshot
		// exists there, and Backfill can put events in front of it.
		oldest, last := w.at(w.first), w.endOfRevision()-1
		expired := oldest.Received < aged
		most, old := s.config.WindowBytes, expired && int(w.next-last) > s.config.MinEvents
		switch {
		case last >= dispatched, s.pinned.Load() > 0:
			most, old = s.config.CeilingBytes, false
		case last >= Position(s.held.Load()):
			most, old = s.config.HeldBytes, false
		}
		if tooMuch := w.bytes > most && w.len() > 1; !tooMuch && !old || oldest.RV > s.mu.complete {
			break
		}
		for w.first <= last {
			e := w.at(w.first)
			e.Element.checkSeal()
			s.mu.floors.raise(&s.config, e, s.mu.scratch[:0])
			w.evict()
			applied.Evicted++
			if !expired {
				applied.Cut++
			}
		}
	}
	w.fit(w.len())
	return applied
}

// The reasons why a read is refused. The errors that State returns wrap
// these.
var (
	// ErrExpired: the window no longer has the events asked for.
	ErrExpired = errors.New("expired")
	// ErrCompacted: the source has compacted the resourceVersion asked for.
	ErrCompacted = errors.New("compacted")
	// ErrTooLarge: the index that was asked for takes too much memory.
	ErrTooLarge = errors.New("too large")
	// ErrFuture: the resourceVersion or position asked for is above the state's.
	ErrFuture = errors.New("in the future")
	// ErrStopped: the reader's done channel was closed before the read was complete.
	ErrStopped = errors.New("no longer wanted")
)

// The reasons why a change is refused: the source and the state differ, and the writer
// must list the source again and call Replace.
var (
	// ErrGap: the change does not fit the state, so earlier changes were missed.
	ErrGap = errors.New("changes were missed")
	// ErrBackwards: the resourceVersion was declared complete, or is below one already seen.
	ErrBackwards = errors.New("resourceVersion goes backwards")
)

// errAbandoned is for readers that waited for a shared value whose maker panicked.
var errAbandoned = errors.New("the call that was making the shared value has panicked")

func expired(rv, oldest uint64) error {
	return fmt.Errorf("resourceVersion %d is older than the oldest kept, %d: %w", rv, oldest, ErrExpired)
}

func future(rv, current uint64) error {
	return fmt.Errorf("resourceVersion %d is above the cache's, %d: %w", rv, current, ErrFuture)
}

func gap(c Change, why string) error {
	return fmt.Errorf("%s of %q at resourceVersion %d: %s: %w", c.Type, c.Element.Key, c.RV, why, ErrGap)
}

// Hold keeps the events from p on in the window, however old, up to Config.HeldBytes, for
// watchers that replay and have not reached them yet. A call replaces the one before.
func (s *State) Hold(p Position) { s.held.Store(uint64(p)) }

// ReleaseHold ends the effect of Hold.
func (s *State) ReleaseHold() { s.held.Store(math.MaxUint64) }
