// SPDX-License-Identifier: Apache-2.0

package dedup

import "math"

// json shares a decoded JSON value with old, and returns what to use in its place
// and whether that is old. Values of types that decoders of JSON don't make are
// left alone.
func (s *Sharer) json(value, old any) (kept any, same bool) {
	switch v := value.(type) {
	case nil:
		return nil, old == nil
	case string:
		if o, ok := old.(string); ok && o == v {
			return old, true
		}
		return s.strings.box(v, value), false
	case map[string]any:
		o, _ := old.(map[string]any)
		kept, same := s.object(v, o)
		return kept, same
	case []any:
		o, _ := old.([]any)
		if kept, same := s.list(v, o, value); !same {
			return kept, false
		}
		return old, true
	case int64:
		if o, ok := old.(int64); ok && o == v {
			return old, true
		}
	case float64:
		if o, ok := old.(float64); ok && math.Float64bits(o) == math.Float64bits(v) {
			return old, true
		}
	case bool:
		o, ok := old.(bool)
		return value, ok && o == v
	}
	return value, false
}

// object shares the entries of a JSON object with those of from, which may be nil,
// and returns what to use in place of the object, and whether that is from.
func (s *Sharer) object(to, from map[string]any) (kept map[string]any, same bool) {
	if to == nil || s.depth >= maxDepth {
		return to, false
	}
	s.depth++
	same = from != nil && len(from) == len(to)
	first, met := len(s.pending), s.met
	s.met += len(to)
	for key, value := range to {
		old, ok := from[key]
		kept, equal := s.json(value, old)
		same = same && ok && equal
		s.pending = append(s.pending, entry{key, kept})
	}
	switch entries := s.pending[first:]; {
	case same:
		kept = from
	case s.met-met > maxPart:
		kept = s.rewrite(to, entries)
	default:
		hash, ok := s.known.hashObject(entries)
		if kept = s.known.object(hash, entries); kept == nil {
			if kept = s.rewrite(to, entries); ok {
				s.known.keep(hash, kept)
			}
		}
	}
	s.pending = s.pending[:first]
	s.depth--
	return kept, same
}

// rewrite gives a JSON object the entries that it has, with the memory of others.
func (s *Sharer) rewrite(object map[string]any, entries []entry) map[string]any {
	object = roomy(object)
	for _, e := range entries {
		// Assigning replaces the key's memory as well.
		object[s.strings.text(e.key)] = e.value
	}
	return object
}

// groupSlots is how many entries a map of Go has in one group, without a table.
const groupSlots = 8

// roomy returns a map to which all entries of m are to be assigned: m, but an empty
// one if m is full. An assignment to a map with eight entries makes a table of it
// that has room for sixteen, though the key be there.
func roomy[V any](m map[string]V) map[string]V {
	if len(m) == groupSlots {
		return make(map[string]V, groupSlots)
	}
	return m
}

// list shares the elements of a JSON array, which value is, with those of from at
// the same index, and returns what to use in place of the array, and whether that
// is from.
func (s *Sharer) list(to, from []any, value any) (kept any, same bool) {
	if to == nil || s.depth >= maxDepth {
		return value, false
	}
	s.depth++
	same = from != nil && len(from) == len(to)
	met := s.met
	s.met += len(to)
	for i, value := range to {
		var old any
		if i < len(from) {
			old = from[i]
		}
		kept, equal := s.json(value, old)
		to[i] = kept
		same = same && equal
	}
	s.depth--
	if same {
		return nil, true
	}
	hash, ok := uint64(0), false
	if s.met-met <= maxPart {
		if hash, ok = s.known.hashList(to); ok {
			if kept = s.known.list(hash, to); kept != nil {
				return kept, false
			}
		}
	}
	if cap(to) > len(to) {
		cut := make([]any, len(to))
		copy(cut, to)
		value = cut
	}
	if ok {
		s.known.keep(hash, value)
	}
	return value, false
}
