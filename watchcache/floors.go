// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"encoding/binary"
	"slices"
	"strings"
)

// Interest selects the events a reader needs: those of Key, if it is not "", which have, before or
// after the change, one of the values of each of Required.
type Interest struct {
	Key      string
	Required []Requirement
}

// Requirement is a condition on an event's values of one attribute. Floor is the attribute's index
// in Config.Floors.
type Requirement struct {
	Floor  int
	Values []string
}

// evictionMarks has, for each value of an attribute, the last evicted event with the value. A reader
// with an Interest in the value has missed no event if its position is after that one. An evicted
// event counts for its values both before and after the change, because leaving a selection is an
// event, too, for the watchers of that selection.
//
// An attribute has at most Config.FloorValues values; long ones are hashed, and two with one hash
// share a mark, which can only be too high. Dropping values raises unknownMark, the mark of all
// values without one. So a reader may get ErrExpired although it has missed nothing, but never the
// reverse. Guarded by the lock of State.
type evictionMarks struct {
	attributes []attributeMarks // parallel to Config.Floors
	// sinceRV is the lowest resourceVersion such that all evicted events above it have marks.
	sinceRV uint64
}

// attributeMarks has the marks of the values of one attribute.
type attributeMarks struct {
	values      map[string]*mark
	unknownMark mark  // of all values that are not in values
	bytes       int64 // of the keys of values
}

// mark is an evicted event: its resourceVersion, and the position after it. The zero value means
// none.
type mark struct {
	rv    uint64
	after Position
}

func (m mark) max(other mark) mark {
	return mark{rv: max(m.rv, other.rv), after: max(m.after, other.after)}
}

func newEvictionMarks(attributes int, rv uint64) evictionMarks {
	return evictionMarks{attributes: make([]attributeMarks, attributes), sinceRV: rv}
}

// add records the eviction of an event.
func (m *evictionMarks) add(config *Config, e *Event, scratch []string) {
	isAlike := e.Previous == nil || e.Element.SelectsAs(e.Previous)
	for i := range m.attributes {
		values := config.Floors[i].Values(e.Element, scratch[:0])
		if !isAlike {
			values = config.Floors[i].Values(e.Previous, values)
		}
		for _, value := range values {
			m.attributes[i].set(value, mark{rv: e.RV, after: e.Position + 1}, config.FloorValues)
		}
	}
}

// longValue is the length, in bytes, above which a value is hashed.
const longValue = 64

// markKey returns the key of a value in attributeMarks.values.
func markKey(value string) string {
	if len(value) <= longValue {
		return value
	}
	return string(binary.BigEndian.AppendUint64(nil, hashOf(value)))
}

func (m *attributeMarks) set(value string, last mark, limit int) {
	key := markKey(value)
	if known := m.values[key]; known != nil {
		*known = last
		return
	}
	if limit <= 0 {
		m.unknownMark = last
		return
	}
	if len(m.values) >= limit {
		m.dropOldest()
	}
	if m.values == nil {
		m.values = make(map[string]*mark)
	}
	added := last                         // so that only a new mark is allocated
	m.values[strings.Clone(key)] = &added // the value may be part of a longer string
	m.bytes += int64(len(key))
}

// dropOldest drops the half of the values with the oldest marks.
func (m *attributeMarks) dropOldest() {
	positions := make([]Position, 0, len(m.values))
	for _, last := range m.values {
		positions = append(positions, last.after)
	}
	slices.Sort(positions)
	median := positions[len(positions)/2]
	for key, last := range m.values {
		if last.after <= median {
			m.unknownMark = m.unknownMark.max(*last)
			m.bytes -= int64(len(key))
			delete(m.values, key)
		}
	}
}

// last returns the last evicted event that may have had one of the values.
func (m *attributeMarks) last(values []string) (last mark) {
	for _, value := range values {
		if known := m.values[markKey(value)]; known != nil {
			last = last.max(*known)
		} else {
			last = last.max(m.unknownMark)
		}
	}
	return last
}

// last returns the last evicted event that may match the interest. Each requirement bounds it. ok
// is false if no requirement has marks.
func (m *evictionMarks) last(interest *Interest) (last mark, ok bool) {
	for _, required := range interest.Required {
		if required.Floor >= len(m.attributes) {
			continue
		}
		bound := m.attributes[required.Floor].last(required.Values)
		if !ok || bound.after < last.after {
			last = bound
			ok = true
		}
	}
	return last, ok
}

// count returns the number of values with marks, and an estimate of their memory in bytes.
func (m *evictionMarks) count() (values int, bytes int64) {
	const perValue = 64 // a map slot including free ones, and the mark
	for i := range m.attributes {
		values += len(m.attributes[i].values)
		bytes += m.attributes[i].bytes
	}
	return values, bytes + int64(values)*perValue
}

// PositionFor returns the position of the first event above rv, or of the next event if there is
// none. beyond is true if events above rv have left the window, but none of them matched the
// interest; the position is then that of the oldest event, and the reader must skip events at or
// below rv. Otherwise PositionFor returns ErrExpired.
func (s *State) PositionFor(rv uint64, interest *Interest) (p Position, beyond bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	w := &s.mu.window
	switch {
	case rv >= w.evictedRV:
		return w.after(rv), false, nil
	case rv >= s.mu.marks.sinceRV && s.hasAllLocked(rv, interest):
		return w.first, true, nil
	}
	return 0, false, expired(rv, w.evictedRV)
}

// hasAllLocked reports whether the window has all matching events above rv, which must not be
// below evictionMarks.sinceRV.
func (s *State) hasAllLocked(rv uint64, interest *Interest) bool {
	if interest.Key != "" {
		// An existing object's last change is at its own resourceVersion.
		if current := s.mu.trees.primary.get(0, interest.Key); current != nil && current.RV <= rv {
			return true
		}
	}
	last, ok := s.mu.marks.last(interest)
	return ok && last.rv <= rv
}

// Resume is PositionFor for a reader that has processed all events before position p. It also
// returns ErrExpired if p is from before the last Replace.
func (s *State) Resume(p Position, interest *Interest) (from Position, beyond bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	w := &s.mu.window
	if p >= w.first {
		return p, false, nil
	}
	if p >= w.start {
		if last, ok := s.mu.marks.last(interest); ok && last.after <= p {
			return w.first, true, nil
		}
	}
	return 0, false, w.check(p)
}
