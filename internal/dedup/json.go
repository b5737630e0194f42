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
		if v != nil && s.deeper(func() bool { return s.object(v, o) }) {
			return old, true
		}
	case []any:
		o, _ := old.([]any)
		if v != nil && s.deeper(func() bool { return s.list(v, o) }) {
			return old, true
		}
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

func (s *Sharer) deeper(walk func() bool) bool {
	if s.depth >= maxDepth {
		return false
	}
	s.depth++
	same := walk()
	s.depth--
	return same
}

// object shares the entries of a JSON object with those of from, which may be nil,
// and reports whether both are equal: then from is to be used in its place, and
// the entries were left as they were.
func (s *Sharer) object(to, from map[string]any) bool {
	same := from != nil && len(from) == len(to)
	first := len(s.pending)
	for key, value := range to {
		old, ok := from[key]
		kept, equal := s.json(value, old)
		same = same && ok && equal
		s.pending = append(s.pending, entry{key, kept})
	}
	if !same {
		for _, e := range s.pending[first:] {
			// Assigning replaces the key's memory as well.
			to[s.strings.text(e.key)] = e.value
		}
	}
	s.pending = s.pending[:first]
	return same
}

// list shares the elements of a JSON array with those of from at the same index.
func (s *Sharer) list(to, from []any) bool {
	same := from != nil && len(from) == len(to)
	for i, value := range to {
		var old any
		if i < len(from) {
			old = from[i]
		}
		kept, equal := s.json(value, old)
		to[i] = kept
		same = same && equal
	}
	return same
}
