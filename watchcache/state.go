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

// Config sizes a State. Only Indexes and Floors have no useful zero value: without them reads by
// value walk over all elements, and readers with an Interest can't continue below the window.
type Config struct {
	// History is the minimum age of events in the window, subject to WindowBytes.
	History time.Duration
	// WindowBytes bounds the memory, in bytes, which the window keeps beyond the current state. It
	// does not apply to undispatched events (W6).
	WindowBytes int64
	// HeldBytes replaces WindowBytes for events kept by Hold, if larger.
	HeldBytes int64
	// CeilingBytes replaces WindowBytes for undispatched events and during PinOldest, if larger.
	// Only the tail may exceed it. 0 means no limit.
	CeilingBytes int64
	// MinEvents is the number of events kept regardless of their age, so that clients of a quiet
	// resource can resume after a long time. It is subject to WindowBytes.
	MinEvents int
	// BackfillEvents is the maximum number of events that Backfill may put in front of the
	// window.
	BackfillEvents int
	// Indexes serve reads by value. Their names must be unique.
	Indexes []Index
	// Floors are the attributes by which the state remembers evicted events, for readers with an
	// Interest. Their Values must depend on keys, labels and fields only. FloorValues is the
	// maximum number of remembered values of each attribute.
	Floors      []Index
	FloorValues int
}

// State is the current state of one resource and the window of its recent changes. One writer at a
// time may call Apply, Replace, Progress and Compacted. All other methods are safe for concurrent
// use, with the writer and with each other.
type State struct {
	config Config

	// replacing keeps indexes from being added or dropped during Replace. Lock it before mu.
	replacing sync.Mutex
	// mu is the writer lock. Nothing blocks while holding it. Of the other locks only
	// keptSnapshots.mu may be taken under it.
	mu struct {
		sync.RWMutex
		trees  trees
		window window
		marks  evictionMarks
		// rv is the highest resourceVersion reported by the source, and complete the one shown to
		// readers. Invariant: complete is rv, or rv-1 while more events at rv may follow; those at
		// rv are the tail. closed is the highest resourceVersion declared complete by the source.
		// Later events at or below it are refused.
		rv, complete, closed uint64
		// compacted is the highest resourceVersion known to be compacted in the source, which
		// can't read lower ones.
		compacted uint64
		bytes     int64 // of the elements in trees
		// kept caches earlier versions. Replace starts a new cache, so that no later reader
		// receives a snapshot of the previous history.
		kept *keptSnapshots
		// scratch is the buffer in which trees and marks collect values.
		scratch [valuesRoom]string
	}

	// latest is the snapshot at complete, nil after any change of its content. latestIncomplete is
	// the snapshot of the trees including the tail, nil after any change of them.
	latest, latestIncomplete atomic.Pointer[Snapshot]
	// published is a clone of the trees, nil after any change of them. Guarded by mu.
	published *base
	// dispatched is the position after the last dispatched event.
	dispatched atomic.Uint64
	// pinned is the number of PinOldest calls in effect.
	pinned atomic.Int64
	// held is the position given to Hold, the highest Position for none.
	held atomic.Uint64
	// now is the latest time passed in by the caller; see Event.Received.
	now atomic.Int64
}

// New returns an empty state at resourceVersion 0. Call Replace to fill it.
func New(config Config) *State {
	config.HeldBytes = max(config.WindowBytes, config.HeldBytes)
	config.CeilingBytes = max(config.WindowBytes, cmp.Or(config.CeilingBytes, math.MaxInt64))
	s := &State{config: config}
	s.ReleaseHold()
	s.mu.trees, _ = build(config.Indexes, nil)
	s.mu.window.ring = make([]*Event, minRing)
	s.mu.marks = newEvictionMarks(len(config.Floors), 0)
	s.mu.kept = new(keptSnapshots)
	return s
}

// Change is one change as reported by the source. Event describes the fields that both have.
type Change struct {
	Type     EventType
	Element  *Element
	RV       uint64
	Received int64
	// Whole shows the change's resourceVersion at once. Set it for a source that does not report
	// the end of a resourceVersion. The state still accepts further changes at that
	// resourceVersion.
	Whole bool
}

// Applied is the effect of a change, or of Trim, on the window.
type Applied struct {
	// Event is the applied change. It is nil for Trim and for a duplicate change.
	Event *Event
	// Evicted is the number of events removed from the window, and Cut the number of those removed
	// for their size before they were as old as Config.History.
	Evicted, Cut int
}

// Apply adds one change to the state, which shows it once its resourceVersion is complete. Apply
// ignores a duplicate of a change at the last resourceVersion in the window. A source repeats such
// changes when it is followed again from the last complete resourceVersion.
//
// Apply returns ErrBackwards for a resourceVersion below the last one, or at or below one declared
// complete, and ErrGap for a change that does not fit the state of its key. The state is then
// unchanged; list the source and call Replace. The caller must not write to the element after the
// call.
func (s *State) Apply(c Change) (Applied, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.RV < s.mu.rv || c.RV <= s.mu.closed {
		return Applied{}, fmt.Errorf("%s of %q at resourceVersion %d after %d: %w",
			c.Type, c.Element.Key, c.RV, s.mu.rv, ErrBackwards)
	}
	previous := s.mu.trees.primary.get(0, c.Element.Key)
	if err := c.fits(previous); err != nil {
		if s.isDuplicateLocked(c) {
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

// fits returns an error if the change can't follow previous, the current element of its key.
func (c Change) fits(previous *Element) error {
	switch {
	case c.Type < Added || c.Type > Deleted:
		return gap(c, fmt.Sprintf("invalid type %d", c.Type))
	case c.Element.RV != c.RV:
		return gap(c, fmt.Sprintf("the object is at resourceVersion %d", c.Element.RV))
	case c.Type == Added && previous != nil:
		return gap(c, "the key already exists")
	case c.Type != Added && previous == nil:
		return gap(c, "the key does not exist")
	case previous != nil && previous.RV >= c.RV:
		return gap(c, fmt.Sprintf("the key is already at resourceVersion %d", previous.RV))
	}
	return nil
}

// changedLocked drops the snapshots derived from the trees. Call it after each change of them.
func (s *State) changedLocked() {
	s.published = nil
	s.latestIncomplete.Store(nil)
}

// Progress declares that the source will send no more changes at or below rv. It returns
// ErrBackwards if rv is below the state's resourceVersion.
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

// Replace sets the whole state, as of rv. rv may be lower than before, e.g. after the source was
// restored from a backup. Replace empties the window and invalidates all positions. If elements
// share a key, it keeps the one with the highest RV, and the last one of those with equal RVs;
// duplicates is the number of elements it ignored.
func (s *State) Replace(elements []*Element, rv uint64) (duplicates int) {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	trees, bytes := build(s.mu.trees.indexes, elements) // only Replace, AddIndex and DropIndex write indexes

	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.window.superseded += s.mu.bytes
	s.mu.trees, s.mu.bytes = trees, bytes
	s.mu.rv, s.mu.complete, s.mu.closed = rv, rv, rv
	s.mu.compacted = 0
	s.mu.window.reset(rv, s.now.Load(), s.config.BackfillEvents)
	s.mu.marks = newEvictionMarks(len(s.config.Floors), rv)
	s.mu.kept = new(keptSnapshots)
	s.changedLocked()
	s.latest.Store(nil)
	return len(elements) - trees.primary.length
}

// Compacted makes At return ErrCompacted for versions below rv, as the source does.
func (s *State) Compacted(rv uint64) {
	s.mu.Lock()
	s.mu.compacted = max(s.mu.compacted, rv)
	kept := s.mu.kept
	s.mu.Unlock()
	kept.drop(func(e *keptSnapshot) bool { return e.rv < rv })
}

// Dispatched declares all events before p dispatched: they may leave the window (W6).
func (s *State) Dispatched(p Position) { s.dispatched.Store(uint64(p)) }

// Trim evicts events older than Config.History at the time now, in the unit of Event.Received.
// Call it periodically, also while no changes arrive.
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

// trimLocked evicts events beyond the limits, oldest first. It stops before the tail, because the
// latest snapshot is derived from the tail's events.
func (s *State) trimLocked() (applied Applied) {
	w := &s.mu.window
	for w.size() > 0 {
		// Evict whole revisions, so that a snapshot exists at the start of the window, and Backfill
		// can put events in front of it.
		end := w.endOfRevision()
		oldest := w.get(w.first)
		isOld := oldest.Received < s.now.Load()-int64(s.config.History)
		if oldest.RV > s.mu.complete || !s.mayEvictLocked(end, isOld) {
			break
		}
		for w.first < end {
			e := w.get(w.first)
			e.Element.checkSeal()
			s.mu.marks.add(&s.config, e, s.mu.scratch[:0])
			w.evict()
			applied.Evicted++
			if !isOld {
				applied.Cut++
			}
		}
	}
	w.fit(w.size())
	return applied
}

// mayEvictLocked reports whether the events before end, which are the oldest revision, are due to
// leave the window, for their size or their age. isOld reports whether they are older than
// Config.History.
func (s *State) mayEvictLocked(end Position, isOld bool) bool {
	w := &s.mu.window
	dispatched := Position(s.dispatched.Load())
	assert(dispatched <= w.next, "W6", "dispatched up to %d, the next event is %d", dispatched, w.next)
	limit := s.config.WindowBytes
	switch {
	case end > dispatched, s.pinned.Load() > 0:
		limit = s.config.CeilingBytes
	case end > Position(s.held.Load()):
		limit = s.config.HeldBytes
	case isOld && int(w.next-end) >= s.config.MinEvents:
		return true
	}
	return w.bytes > limit && w.size() > 1
}

// A revision may have several events, which arrive one by one. The state shows a revision only
// when it has all of them. No snapshot, bookmark or resourceVersion to resume from may name an
// incomplete revision.

// advanceLocked notes a change at rv before its element is set. All resourceVersions below rv are
// complete then.
func (s *State) advanceLocked(rv uint64, whole bool) {
	assert(rv >= s.mu.rv, "W1", "resourceVersion falls from %d to %d", s.mu.rv, rv)
	switch {
	case rv == s.mu.complete:
		// The state already shows rv. A snapshot at rv lacks this change.
		s.latest.Store(nil)
		s.mu.kept.drop(func(k *keptSnapshot) bool { return k.rv == rv })
	case whole:
		s.completeLocked(rv)
	default:
		s.completeLocked(max(rv-1, s.mu.complete))
	}
	s.mu.rv = rv
	assert(s.mu.complete == rv || s.mu.complete == rv-1, "W2", "complete up to %d with a change at %d", s.mu.complete, rv)
}

// completeLocked makes rv the resourceVersion shown by the state. rv may be above all events.
func (s *State) completeLocked(rv uint64) {
	assert(rv >= s.mu.complete, "W1", "the complete resourceVersion falls from %d to %d", s.mu.complete, rv)
	if rv == s.mu.complete {
		return
	}
	if rv > s.mu.rv {
		s.mu.rv = rv
		s.latestIncomplete.Store(nil)
	}
	s.mu.complete = rv
	s.latest.Store(nil)
}

// Unfinished returns the resourceVersion of the last change while more changes at it may follow,
// and 0 once the state shows all changes.
func (s *State) Unfinished() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.mu.rv == s.mu.complete {
		return 0
	}
	return s.mu.rv
}

// isDuplicateLocked reports whether the state has already applied the change, at the last
// resourceVersion.
func (s *State) isDuplicateLocked(c Change) bool {
	w := &s.mu.window
	for p := w.next; p > w.first; p-- {
		e := w.get(p - 1)
		if e.RV != c.RV {
			return false
		}
		if e.Type == c.Type && e.Element.Key == c.Element.Key {
			return true
		}
	}
	return false
}

// The reasons for refusing a read. Errors returned by State wrap them.
var (
	// ErrExpired means that the requested events have left the window.
	ErrExpired = errors.New("expired")
	// ErrCompacted means that the source has compacted the requested resourceVersion.
	ErrCompacted = errors.New("compacted")
	// ErrTooLarge means that the requested index exceeds its memory limit.
	ErrTooLarge = errors.New("too large")
	// ErrFuture means that the requested resourceVersion or position is above the state's.
	ErrFuture = errors.New("in the future")
	// ErrStopped means that the reader's done channel was closed before the read finished.
	ErrStopped = errors.New("stopped by the reader")
)

// The reasons for refusing a change: source and state differ. List the source again and call
// Replace.
var (
	// ErrGap means that the change does not fit the state, i.e. the state missed earlier changes.
	ErrGap = errors.New("changes are missing")
	// ErrBackwards means that the resourceVersion is below the last one or already complete.
	ErrBackwards = errors.New("resourceVersion goes backwards")
)

// errAbandoned is the result of a shared value whose builder panicked.
var errAbandoned = errors.New("building the shared value panicked")

func expired(rv, oldest uint64) error {
	return fmt.Errorf("resourceVersion %d is older than the oldest one available, %d: %w", rv, oldest, ErrExpired)
}

func future(rv, current uint64) error {
	return fmt.Errorf("resourceVersion %d is above that of the cache, %d: %w", rv, current, ErrFuture)
}

func gap(c Change, why string) error {
	return fmt.Errorf("%s of %q at resourceVersion %d: %s: %w", c.Type, c.Element.Key, c.RV, why, ErrGap)
}

// Hold keeps the events from p on in the window regardless of their age, up to Config.HeldBytes,
// for watchers that replay them. Each call replaces the previous one.
func (s *State) Hold(p Position) { s.held.Store(uint64(p)) }

// ReleaseHold cancels Hold.
func (s *State) ReleaseHold() { s.held.Store(math.MaxUint64) }
