// SPDX-License-Identifier: Apache-2.0

package heapsize

import (
	"reflect"
	"runtime"
	"unsafe"
)

const (
	// maxVisits bounds the values that one walk visits, so that a cycle ends.
	// A larger object is counted up to there, which is at least a megabyte.
	maxVisits = 1 << 20
	// maxDepth bounds how deep a walk goes. Decoded JSON is not as deep.
	maxDepth = 1 << 15
)

// Of returns the memory that v leads to, in bytes: what v points at if it is a
// pointer, else the value itself, and everything below. Of returns 0 for nil and
// for a nil pointer. Of never panics: memory that can't be followed is left out.
//
// v must not be written to meanwhile.
func Of(v any) int64 {
	w := walk{visits: maxVisits}
	w.start(v)
	runtime.KeepAlive(v)
	return int64(w.bytes)
}

// start counts what v holds. Memory that was counted before a panic stays counted.
func (w *walk) start(v any) {
	defer func() { _ = recover() }()
	w.boxed(v)
}

// boxed counts what an interface holds, of whatever type.
func (w *walk) boxed(v any) {
	t := reflect.TypeOf(v)
	if t == nil {
		return
	}
	p := planOf(t)
	word := (*box)(unsafe.Pointer(&v)).word
	if p.direct {
		w.value(unsafe.Pointer(&word), p)
		return
	}
	w.bytes += p.alloc
	w.value(word, p)
}

// box is how Go lays out an interface without methods: the type, and a word
// that is the value itself if that is a pointer, else points at it.
type box struct {
	typ, word unsafe.Pointer
}
