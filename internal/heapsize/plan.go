// SPDX-License-Identifier: Apache-2.0

package heapsize

import (
	"reflect"
	"runtime"
	"sync"
	"unsafe"
)

// plan says where the values of one type refer to other memory. A plan does not
// change once it is published.
type plan struct {
	// size is that of a value; alloc what the allocator takes for one.
	size, alloc uintptr
	// pointers reports whether values have pointers, followed or not.
	pointers bool
	// direct reports whether an interface holds such a value in its own word.
	direct bool
	// strings are the offsets of the strings in a value, which is what it has
	// most of; refs are its other references.
	strings []uintptr
	refs    []ref
}

// leads reports whether a value can refer to other memory that is counted.
func (p *plan) leads() bool { return len(p.strings)+len(p.refs) > 0 }

// ref is one reference in a value.
type ref struct {
	offset uintptr
	kind   refKind
	count  int      // of an array
	elem   *plan    // of what a pointer, slice or array leads to
	table  *mapPlan // of a map
}

type refKind uint8

const (
	pointer refKind = iota
	slice
	array // in place, and too long to be flattened
	table
	anyInterface    // without methods
	methodInterface // with methods
)

// flattened is how many references an array may add to the plan of the type
// that holds it; a longer one is walked in a loop.
const flattened = 64

// plans are those of all types met so far, *plan by reflect.Type.
var plans sync.Map

// planOf returns the plan of a type and makes it if there is none.
func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	c := compiler{plans: make(map[reflect.Type]*plan)}
	p := c.plan(t)
	for t, p := range c.plans {
		plans.LoadOrStore(t, p)
	}
	return p
}

// compiler makes the plans of a type and of all types that it leads to. Types
// may lead back to themselves: a plan is known before it is complete, and only
// published when all are.
type compiler struct {
	plans map[reflect.Type]*plan
}

func (c *compiler) plan(t reflect.Type) *plan {
	if p := c.plans[t]; p != nil {
		return p
	}
	p := &plan{size: t.Size(), pointers: hasPointers(t)}
	p.alloc, p.direct = allocated(p.size, p.pointers), isDirect(t)
	c.plans[t] = p
	c.add(p, t, 0)
	return p
}

// add adds to p the references of a value of type t at an offset.
func (c *compiler) add(p *plan, t reflect.Type, at uintptr) {
	if opaque(t) {
		return
	}
	switch t.Kind() {
	case reflect.String:
		p.strings = append(p.strings, at)
	case reflect.Pointer:
		p.refs = append(p.refs, ref{offset: at, kind: pointer, elem: c.plan(t.Elem())})
	case reflect.Slice:
		p.refs = append(p.refs, ref{offset: at, kind: slice, elem: c.plan(t.Elem())})
	case reflect.Map:
		p.refs = append(p.refs, ref{offset: at, kind: table, table: c.table(t)})
	case reflect.Interface:
		kind := anyInterface
		if t.NumMethod() > 0 {
			kind = methodInterface
		}
		p.refs = append(p.refs, ref{offset: at, kind: kind})
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			c.add(p, f.Type, at+f.Offset)
		}
	case reflect.Array:
		c.addArray(p, t, at)
	}
}

func (c *compiler) addArray(p *plan, t reflect.Type, at uintptr) {
	elem, n := t.Elem(), t.Len()
	if n == 0 || !hasPointers(elem) {
		return
	}
	each := c.plan(elem)
	if n*(len(each.strings)+len(each.refs)) > flattened {
		p.refs = append(p.refs, ref{offset: at, kind: array, count: n, elem: each})
		return
	}
	for i := range n {
		c.add(p, elem, at+uintptr(i)*elem.Size())
	}
}

// opaque reports whether values of the type are not followed: what they refer to
// is shared by the whole process, or guarded by a lock.
func opaque(t reflect.Type) bool {
	switch t.PkgPath() {
	case "time", "reflect", "context", "runtime", "sync":
		return true
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	for i := range t.NumField() {
		f := t.Field(i).Type
		if f.Kind() == reflect.Array {
			f = f.Elem() // [0]sync.Mutex forbids to copy a struct
		}
		if f.PkgPath() == "sync" {
			return true
		}
	}
	return false
}

// hasPointers reports whether the garbage collector looks into such values.
func hasPointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Chan, reflect.Func, reflect.UnsafePointer,
		reflect.String, reflect.Slice, reflect.Interface:
		return true
	case reflect.Array:
		return t.Len() > 0 && hasPointers(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if hasPointers(t.Field(i).Type) {
				return true
			}
		}
	}
	return false
}

// isDirect reports whether an interface holds values of the type in its word. Of
// types that may be laid out as a pointer it looks at the word for the zero
// value: nil, or the address of one.
func isDirect(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return true
	case reflect.Array, reflect.Struct:
		if t.Size() != wordSize || !hasPointers(t) {
			return false
		}
		zero := reflect.Zero(t).Interface()
		return (*box)(unsafe.Pointer(&zero)).word == nil
	}
	return false
}

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

// classes are the sizes of small objects that Go's allocator has.
var classes = [...]uint16{
	8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 352, 384, 416, 448,
	480, 512, 576, 640, 704, 768, 896, 1024, 1152, 1280, 1408, 1536, 1792, 2048, 2304, 2688, 3072, 3200, 3456,
	4096, 4864, 5376, 6144, 6528, 6784, 6912, 8192, 9472, 9728, 10240, 10880, 12288, 13568, 14336, 16384, 18432,
	19072, 20480, 21760, 24576, 27264, 28672, 32768,
}

const (
	maxSmall = 32768
	page     = 8192
	// An object with pointers that is larger than maxBitmap, but small, has a
	// header of one word.
	maxBitmap = wordSize * wordSize * 8
	// steps is the range that has a class for each multiple of 8; above it
	// there is one for each multiple of 128.
	steps = 1024
)

// class8 is the class of each size up to steps, by eighths, class128 of the
// sizes above it, by their distance.
var (
	class8   = classTable[[steps/8 + 1]uint16](0, 8)
	class128 = classTable[[(maxSmall-steps)/128 + 1]uint16](steps, 128)
)

func classTable[T [129]uint16 | [249]uint16](from, step int) (table T) {
	class := 0
	for i := range len(table) {
		for int(classes[class]) < from+i*step {
			class++
		}
		table[i] = classes[class]
	}
	if from == 0 {
		table[0] = 0 // nothing is allocated for nothing
	}
	return table
}

// allocated returns what the allocator takes for n bytes.
func allocated(n uintptr, pointers bool) uintptr {
	if n <= maxBitmap {
		return uintptr(class8[(n+7)/8])
	}
	return allocatedLarge(n, pointers)
}

func allocatedLarge(n uintptr, pointers bool) uintptr {
	if pointers && n <= maxSmall-wordSize {
		n += wordSize
	}
	switch {
	case n <= steps:
		return uintptr(class8[(n+7)/8])
	case n <= maxSmall:
		return uintptr(class128[(n-steps+127)/128])
	}
	return roundUp(n, page)
}
