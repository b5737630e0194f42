// SPDX-License-Identifier: Apache-2.0

package dedup

import (
	"maps"
	"reflect"
	"unsafe"

	"k8s.io/apimachinery/pkg/api/resource"
)

// maxDepth bounds how deep a walk goes; what lies deeper is not shared.
const maxDepth = 1 << 12

// Sharer shares the memory of objects. A Sharer is for one goroutine at a time.
type Sharer struct {
	strings table
	known   parts
	// met counts the entries and elements of JSON that the walk has met.
	met int
	// pending are the entries of JSON objects that the walk is in; none between
	// two walks.
	pending []entry
	depth   int
}

// entry is what a key of a JSON object leads to once equal parts are shared.
type entry struct {
	key   string
	value any
}

// Share makes object use the memory of parts of like that are equal to its own,
// and of strings that the Sharer has met. Both are pointers to values of one type;
// Share does nothing about those of different types, and only looks for known
// strings if like is nil.
//
// Nobody else may have object yet. Share does not write to like, which others may
// read meanwhile.
func (s *Sharer) Share(object, like any) {
	t := reflect.TypeOf(object)
	if t == nil || t.Kind() != reflect.Pointer {
		return
	}
	if like != nil && reflect.TypeOf(like) != t {
		like = nil
	}
	dst, src := (*eface)(unsafe.Pointer(&object)).word, (*eface)(unsafe.Pointer(&like)).word
	if dst == nil || dst == src {
		return
	}
	s.value(dst, src, planOf(t.Elem()))
	clear(s.pending[:cap(s.pending)])
	if cap(s.pending) > maxPending {
		s.pending = nil
	}
}

// maxPending is how many entries a Sharer keeps room for.
const maxPending = 1 << 10

// value shares what the value at dst refers to with the value at src, which may be
// nil, and reports whether both are equal now, word by word.
func (s *Sharer) value(dst, src unsafe.Pointer, p *plan) bool {
	if p.never || s.depth >= maxDepth {
		return false
	}
	s.depth++
	equal := s.parts(dst, src, p) && words(dst, src, p.size)
	s.depth--
	return equal
}

// parts shares what the value at dst refers to, and reports whether all of that is
// equal.
func (s *Sharer) parts(dst, src unsafe.Pointer, p *plan) bool {
	equal := src != nil
	for _, offset := range p.strings {
		text := (*string)(unsafe.Add(dst, offset))
		if src != nil {
			if other := *(*string)(unsafe.Add(src, offset)); other == *text {
				*text = other
				continue
			}
			equal = false
		}
		*text = s.strings.text(*text)
	}
	for i := range p.refs {
		r := &p.refs[i]
		var other unsafe.Pointer
		if src != nil {
			other = unsafe.Add(src, r.offset)
		}
		if at := unsafe.Add(dst, r.offset); r.kind == array || *(*unsafe.Pointer)(at) != nil {
			equal = s.follow(at, other, r) && equal
		}
	}
	return equal
}

// words reports whether n bytes of memory are the same.
func words(a, b unsafe.Pointer, n uintptr) bool {
	return unsafe.String((*byte)(a), n) == unsafe.String((*byte)(b), n)
}

// follow shares what the reference at dst, which is not nil, leads to, with what
// the one at src leads to, and reports whether both are the same now. src is nil
// if there is nothing to share with.
func (s *Sharer) follow(dst, src unsafe.Pointer, r *ref) bool {
	switch r.kind {
	case pointer:
		to := (*unsafe.Pointer)(dst)
		var other unsafe.Pointer
		if src != nil {
			other = *(*unsafe.Pointer)(src)
		}
		if *to == other {
			return true
		}
		if !s.value(*to, other, r.elem) {
			return false
		}
		*to = other
		return true
	case slice:
		return s.slice((*sliceHeader)(dst), (*sliceHeader)(src), r.elem)
	case array:
		equal := src != nil
		for i := range r.count {
			at := uintptr(i) * r.elem.size
			var other unsafe.Pointer
			if src != nil {
				other = unsafe.Add(src, at)
			}
			equal = s.value(unsafe.Add(dst, at), other, r.elem) && equal
		}
		return equal
	case anyInterface:
		var old any
		if src != nil {
			old = *(*any)(src)
		}
		kept, same := s.json(*(*any)(dst), old)
		*(*any)(dst) = kept
		return same
	}
	return s.table(dst, src, r.kind)
}

// slice shares the elements of a slice, index by index.
func (s *Sharer) slice(to, from *sliceHeader, elem *plan) bool {
	to.cap = to.len
	n, equal := 0, false
	if from != nil && from.data != nil {
		if from.data == to.data && from.len == to.len && from.cap == to.cap {
			return true
		}
		n, equal = min(to.len, from.len), from.len == to.len
	}
	switch {
	case elem.never:
		return false
	case len(elem.strings)+len(elem.refs) == 0:
		equal = equal && words(to.data, from.data, uintptr(to.len)*elem.size)
	default:
		for i := range to.len {
			at := uintptr(i) * elem.size
			var other unsafe.Pointer
			if i < n {
				other = unsafe.Add(from.data, at)
			}
			equal = s.value(unsafe.Add(to.data, at), other, elem) && equal
		}
	}
	if !equal || from.cap != from.len {
		return false
	}
	*to = *from
	return true
}

// table shares the entries of a map.
func (s *Sharer) table(dst, src unsafe.Pointer, kind refKind) (same bool) {
	switch kind {
	case texts:
		to, from := mapsAt[string](dst, src)
		*to, same = s.texts(*to, from)
	case anys:
		to, from := mapsAt[any](dst, src)
		*to, same = s.object(*to, from)
	case bytes:
		to, from := mapsAt[[]byte](dst, src)
		*to, same = s.bytes(*to, from)
	case quantities:
		to, from := mapsAt[resource.Quantity](dst, src)
		*to, same = s.quantities(*to, from)
	}
	return same
}

// mapsAt returns where the map at dst is, and the map at src, nil if src is.
func mapsAt[V any](dst, src unsafe.Pointer) (to *map[string]V, from map[string]V) {
	if src != nil {
		from = *(*map[string]V)(src)
	}
	return (*map[string]V)(dst), from
}

// texts shares a map of strings: the whole map, which it returns in place of to, else
// the strings that are known.
func (s *Sharer) texts(to, from map[string]string) (kept map[string]string, same bool) {
	if from != nil && maps.Equal(to, from) {
		return from, true
	}
	kept = roomy(to)
	for key, value := range to {
		if old, ok := from[key]; ok && old == value {
			value = old
		} else {
			value = s.strings.text(value)
		}
		// Assigning replaces the key's memory as well.
		kept[s.strings.text(key)] = value
	}
	return kept, false
}

// bytes shares a map of contents: the whole map, else the contents that are equal.
func (s *Sharer) bytes(to, from map[string][]byte) (kept map[string][]byte, same bool) {
	same = from != nil && len(from) == len(to)
	kept = roomy(to)
	for key, value := range to {
		if old, ok := from[key]; ok && old != nil && value != nil && string(old) == string(value) {
			value = old[:len(old):len(old)]
		} else {
			same = false
		}
		kept[key] = value
	}
	if same {
		return from, true
	}
	return kept, false
}

// quantities shares a map of quantities: the whole map, else the keys.
func (s *Sharer) quantities(to, from map[string]resource.Quantity) (kept map[string]resource.Quantity, same bool) {
	if from != nil && maps.Equal(to, from) {
		return from, true
	}
	kept = roomy(to)
	for key, value := range to {
		kept[s.strings.text(key)] = value
	}
	return kept, false
}
