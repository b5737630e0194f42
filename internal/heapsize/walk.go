// SPDX-License-Identifier: Apache-2.0

package heapsize

import "unsafe"

// walk is one walk over a value.
type walk struct {
	bytes uintptr
	// visits and depth are how many values may still be visited, and how deep
	// the walk is.
	visits, depth int
}

// sliceHeader is how Go lays out a slice.
type sliceHeader struct {
	data     unsafe.Pointer
	len, cap int
}

// text counts the memory of a string.
func (w *walk) text(s string) { w.bytes += allocated(uintptr(len(s)), false) }

// value counts what the value at v, which has the plan p, refers to, but not
// the value itself.
func (w *walk) value(v unsafe.Pointer, p *plan) {
	for _, offset := range p.strings {
		w.text(*(*string)(unsafe.Add(v, offset)))
	}
	if len(p.refs) == 0 {
		return
	}
	if w.visits <= 0 || w.depth >= maxDepth {
		return
	}
	w.visits--
	w.depth++
	for i := range p.refs {
		r := &p.refs[i]
		at := unsafe.Add(v, r.offset)
		// The first word of all of them is zero in a value without reference,
		// which most are.
		if *(*unsafe.Pointer)(at) != nil || r.kind == array {
			w.follow(at, r)
		}
	}
	w.depth--
}

// follow counts what the reference at v, which is not nil, leads to.
func (w *walk) follow(v unsafe.Pointer, r *ref) {
	switch r.kind {
	case pointer:
		w.bytes += r.elem.alloc
		w.value(*(*unsafe.Pointer)(v), r.elem)
	case slice:
		s := (*sliceHeader)(v)
		w.bytes += allocated(uintptr(s.cap)*r.elem.size, r.elem.pointers)
		w.values(s.data, s.len, r.elem)
	case array:
		w.values(v, r.count, r.elem)
	case table:
		w.table(v, r.table)
	case anyInterface:
		w.any(*(*any)(v))
	case methodInterface:
		// The conversion does not depend on the methods.
		w.any(*(*interface{ M() })(v))
	}
}

// values counts what n values in a row refer to.
func (w *walk) values(v unsafe.Pointer, n int, p *plan) {
	if !p.leads() {
		return
	}
	for i := 0; i < n && w.visits > 0; i++ {
		w.visits--
		w.value(unsafe.Add(v, uintptr(i)*p.size), p)
	}
}

const (
	stringBox = unsafe.Sizeof("")
	sliceBox  = unsafe.Sizeof([]any{})
	numberBox = unsafe.Sizeof(int64(0))
	// static is how many small integers Go keeps ready made.
	static = 256
)

// any counts what an interface holds. Of the types of decoded JSON it knows
// without a plan what that is.
func (w *walk) any(v any) {
	switch v := v.(type) {
	case nil, bool:
	case string:
		if v != "" {
			w.bytes += stringBox
			w.text(v)
		}
	case int64:
		if uint64(v) >= static {
			w.bytes += numberBox
		}
	case float64:
		w.bytes += numberBox
	case map[string]any:
		w.object(v)
	case []any:
		w.bytes += allocated(sliceBox, true)
		w.list(v)
	default:
		w.boxed(v)
	}
}

// object counts a JSON object.
func (w *walk) object(m map[string]any) {
	if m == nil || w.visits <= 0 || w.depth >= maxDepth {
		return
	}
	w.depth++
	w.bytes += objects.memory(len(m))
	for key, v := range m {
		w.visits--
		w.text(key)
		w.any(v)
	}
	w.depth--
}

// list counts a JSON array.
func (w *walk) list(s []any) {
	if w.visits <= 0 || w.depth >= maxDepth {
		return
	}
	w.depth++
	w.bytes += allocated(uintptr(cap(s))*unsafe.Sizeof(any(nil)), true)
	for _, v := range s {
		w.visits--
		w.any(v)
	}
	w.depth--
}
