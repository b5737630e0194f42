// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"strings"
)

// Interest is the part of the history that a reader is for. An event is for the reader
// only if, for each of Required, the event has one of the values, before or after
// the change; and only if the event is of the key, if Key is not "".
type Interest struct {
	Key      string
	Required []Requirement
}

// Requirement is a condition on the values that an event has by one of Config.Floors.
// Floor is an index into it.
type Requirement struct {
	Floor  int
	Values []string
}

// floors remember, for each value of an attribute, the last event with it that has left
// the window: a reader whose interest has a later start has missed nothing. An evicted
// event raises the floors of its values, those before the change included, because an
// object that leaves a selection is an event for the watchers that select it.
//
// A floor has at most Config.FloorValues values, of which long ones are hashed: two that share a
// hash share a floor, the higher one. Forgetting others raises the base of all
// values that the floor does not have: a reader may get ErrExpired although it has missed
// nothing, and never the reverse. The lock of the State guards them.
type floors struct {
	of []floor // parallel to Config.Floors
	// base is the lowest resourceVersion such that everything above it that has left
	// the window is in the floors.
	base uint64
}

// floor has the floors of the values of one attribute.
type floor struct {
	values map[string]*eviction
	base   eviction // of the values that are not in values
	bytes  int64    // of the keys of values
}

// eviction is an event that has left the window: its resourceVersion, and the position
// after it. The zero value stands for none.
type eviction struct {
	rv    uint64
	after Position
}

func newFloors(n int, rv uint64) floors { return floors{of: make([]floor, n), base: rv} }

// raise notes that an event leaves the window.
func (f *floors) raise(config *Config, e *Event, scratch []string) {
	at := eviction{rv: e.RV, after: e.Position + 1}
	alike := e.Previous == nil || e.Element.SelectsAs(e.Previous)
	for i := range f.of {
		attribute := &config.Floors[i]
		values := attribute.Values(e.Element, scratch[:0])
		if !alike {
			values = attribute.Values(e.Previous, values)
		}
		for _, value := range values {
			f.of[i].raise(value, at, config.FloorValues)
		}
	}
}

// longValue is the length, in bytes, above which a value is hashed.
const longValue = 64

var valueSeed = maphash.MakeSeed()

// floorKey returns the key of a value in floors.
func floorKey(value string) string {
	if len(value) <= longValue {
		return value
	}
	return string(binary.BigEndian.AppendUint64(nil, maphash.String(valueSeed, value)))
}

func (f *floor) raise(value string, at eviction, most int) {
	value = floorKey(value)
	if found := f.values[value]; found != nil {
		*found = at
		return
	}
	if most <= 0 {
		f.base = at
		return
	}
	if len(f.values) >= most {
		f.forget()
	}
	if f.values == nil {
		f.values = make(map[string]*eviction)
	}
	value = strings.Clone(value) // the value may be a part of a longer string
	f.values[value] = &at
	f.bytes += int64(len(value))
}

// forget forgets the half of the values whose last events are the oldest.
func (f *floor) forget() {
	after := make([]Position, 0, len(f.values))
	for _, at := range f.values {
		after = append(after, at.after)
	}
	slices.Sort(after)
	highest := after[len(after)/2]
	for value, at := range f.values {
		if at.after > highest {
			continue
		}
		f.base = eviction{rv: max(f.base.rv, at.rv), after: max(f.base.after, at.after)}
		f.bytes -= int64(len(value))
		delete(f.values, value)
	}
}

// last returns the last event that has left the window and may have had one of the
// values.
func (f *floor) last(values []string) (last eviction) {
	for _, value := range values {
		at := f.base
		if found := f.values[floorKey(value)]; found != nil {
			at = *found
		}
		last = eviction{rv: max(last.rv, at.rv), after: max(last.after, at.after)}
	}
	return last
}

// last returns the last event that has left the window and may be of interest, as far as
// the requirements say: each of them bounds it. ok is false if none of them says anything.
func (f *floors) last(of *Interest) (last eviction, ok bool) {
	for _, required := range of.Required {
		if required.Floor >= len(f.of) {
			continue
		}
		at := f.of[required.Floor].last(required.Values)
		if !ok || at.after < last.after {
			last, ok = at, true
		}
	}
	return last, ok
}

// count returns how many values the floors have, and an estimate of the memory
// that they take, in bytes.
func (f *floors) count() (values int, bytes int64) {
	const perValue = 64 // a slot of the map with some room, and what it refers to
	for i := range f.of {
		values += len(f.of[i].values)
		bytes += f.of[i].bytes + int64(len(f.of[i].values))*perValue
	}
	return values, bytes
}

// PositionFor returns the position of the first event above rv, or that of the next event
// to come if there is none. If events after rv have left the window, but none that is for
// a reader with this interest, the position is that of the oldest event there is, and
// beyond is true; the reader must skip events at or below rv. Otherwise the error is
// ErrExpired.
func (s *State) PositionFor(rv uint64, of *Interest) (p Position, beyond bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	w := &s.mu.window
	switch {
	case rv >= w.dropped:
		return w.after(rv), false, nil
	case rv >= s.mu.floors.base && s.hasAllLocked(rv, of):
		return w.first, true, nil
	}
	return 0, false, expired(rv, w.dropped)
}

// hasAllLocked reports whether the window has all events of interest after rv, which
// is not below the base of the floors.
func (s *State) hasAllLocked(rv uint64, of *Interest) bool {
	if of.Key != "" {
		// An object that is there was last changed at its own resourceVersion.
		if found := s.mu.trees.primary.get(0, of.Key); found != nil && found.RV <= rv {
			return true
		}
	}
	last, ok := s.mu.floors.last(of)
	return ok && last.rv <= rv
}

// Resume is PositionFor for a reader that has seen everything before the position p. The
// error is also ErrExpired if Replace was called since p was given out.
func (s *State) Resume(p Position, of *Interest) (at Position, beyond bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	w := &s.mu.window
	if p >= w.first {
		return p, false, nil
	}
	if p >= w.start {
		if last, ok := s.mu.floors.last(of); ok && last.after <= p {
			return w.first, true, nil
		}
	}
	return 0, false, w.check(p)
}
