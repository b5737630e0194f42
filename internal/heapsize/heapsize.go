// SPDX-License-Identifier: Apache-2.0

// Package heapsize estimates the memory of a decoded object: the struct and everything reachable
// through its pointers, strings, slices, maps and interfaces, rounded up as by the allocator.
//
// [Of] plans each type once, by reflection: the offsets of its strings and of its other references.
// Sizing an object then walks those places in memory, without allocating and without a method of
// the object, so that internal types, which have no serialization, are sized as exactly as
// versioned ones.
//
// Shared memory is counted for each reference. We don't follow functions, channels, unsafe
// pointers, types of packages time, reflect, context, runtime and sync, and structs with a field of
// package sync, which may guard their other fields.
package heapsize

import (
	"reflect"
	"sync"
	"unsafe"
)

const (
	// maxVisits bounds the values visited by one walk, so that a cycle ends. A larger object is
	// counted up to there, at least a megabyte.
	maxVisits = 1 << 20
	// maxDepth bounds the depth of a walk. Decoded JSON is not as deep.
	maxDepth = 1 << 15
)

// Of returns the bytes of memory used by v, or by *v if v is a pointer, including everything it
// refers to. It returns 0 for nil and nil pointers.
//
// The caller must not write to v during the call.
func Of(v any) int64 {
	w := walk{visits: maxVisits}
	w.any(v)
	return int64(w.bytes)
}

type walk struct {
	bytes uintptr
	// Remaining values to visit, and the current depth.
	visits, depth int
}

func (w *walk) text(s string) { w.bytes += allocated(uintptr(len(s)), false) }

// any needs no plan for the types of decoded JSON.
func (w *walk) any(v any) {
	if w.visits <= 0 || w.depth >= maxDepth {
		return
	}
	w.visits--
	w.depth++
	switch v := v.(type) {
	case nil, bool:
	case string:
		if v != "" {
			w.bytes += unsafe.Sizeof(v)
			w.text(v)
		}
	case int64, float64:
		w.bytes += wordSize
	case map[string]any:
		if v != nil {
			w.bytes += mapMemory(len(v), jsonKey, jsonValue)
		}
		for key, v := range v {
			w.text(key)
			w.any(v)
		}
	case []any:
		w.bytes += unsafe.Sizeof(v) + allocated(uintptr(cap(v))*jsonValue.size, true)
		for _, v := range v {
			w.any(v)
		}
	default:
		w.boxed(reflect.ValueOf(v))
	}
	w.depth--
}

func (w *walk) boxed(v reflect.Value) {
	p := planOf(v.Type())
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Map {
		word := v.UnsafePointer() // held by the interface itself
		w.value(unsafe.Pointer(&word), p)
		return
	}
	w.bytes += p.alloc
	copied := reflect.New(v.Type()) // rare: decoded objects contain no such values
	copied.Elem().Set(v)
	w.value(copied.UnsafePointer(), p)
}

// value counts the memory referenced by the value at v, which has the plan p.
func (w *walk) value(v unsafe.Pointer, p *plan) {
	for _, offset := range p.strings {
		w.text(*(*string)(unsafe.Add(v, offset)))
	}
	if len(p.refs) == 0 || w.visits <= 0 || w.depth >= maxDepth {
		return
	}
	w.visits--
	w.depth++
	for i := range p.refs {
		r := &p.refs[i]
		at := unsafe.Add(v, r.offset)
		// The first word of every kind is zero in an empty value, as most are.
		if *(*unsafe.Pointer)(at) != nil {
			w.follow(at, r)
		}
	}
	w.depth--
}

// follow counts the memory behind the reference at v, which is not nil.
func (w *walk) follow(v unsafe.Pointer, r *ref) {
	switch r.kind {
	case reflect.Pointer:
		w.bytes += r.elem.alloc
		w.value(*(*unsafe.Pointer)(v), r.elem)
	case reflect.Slice:
		s := *(*[]byte)(v) // slices of all types have the same layout
		w.bytes += allocated(uintptr(cap(s))*r.elem.size, r.elem.leads())
		for i := 0; i < len(s) && r.elem.leads(); i++ {
			w.value(unsafe.Add(unsafe.Pointer(unsafe.SliceData(s)), uintptr(i)*r.elem.size), r.elem)
		}
	case reflect.Map:
		m := *(*map[string]string)(v) // every map has its length there
		w.bytes += mapMemory(len(m), r.key, r.elem)
		if r.entries != nil {
			w.entries(v, r)
			return
		}
		for key, value := range m {
			w.text(key)
			w.text(value)
		}
	case reflect.Interface:
		if r.methods {
			w.any(*(*interface{ M() })(v)) // any method set will do
		} else {
			w.any(*(*any)(v))
		}
	}
}

func (w *walk) entries(v unsafe.Pointer, r *ref) {
	e := r.entries.Get().(*entry)
	*(*unsafe.Pointer)(e.table.UnsafePointer()) = *(*unsafe.Pointer)(v)
	for iter := e.table.Elem().MapRange(); iter.Next(); {
		e.key.Elem().SetIterKey(iter)
		w.value(e.key.UnsafePointer(), r.key)
		e.elem.Elem().SetIterValue(iter)
		w.value(e.elem.UnsafePointer(), r.elem)
	}
	r.entries.Put(e)
}

// plan is where the values of one type refer to other memory. Immutable once published.
type plan struct {
	// size is a value's size, and alloc its allocation's.
	size, alloc uintptr
	// Offsets of the strings in a value, and its other references.
	strings []uintptr
	refs    []ref
}

func (p *plan) leads() bool { return len(p.strings)+len(p.refs) > 0 }

// ref is one reference in a value: a pointer, slice, map or interface.
type ref struct {
	offset    uintptr
	kind      reflect.Kind
	methods   bool       // of an interface
	key, elem *plan      // of its target, unless an interface
	entries   *sync.Pool // of a map, unless of strings by strings: *entry
}

// entry has pointers to a map and one of its entries, so that reflection walks maps without
// allocating.
type entry struct{ table, key, elem reflect.Value }

var plans sync.Map

// plans of decoded JSON
var jsonKey, jsonValue = planOf(reflect.TypeFor[string]()), planOf(reflect.TypeFor[any]())

func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	c := make(compiler)
	p := c.plan(t)
	for t, p := range c {
		plans.LoadOrStore(t, p)
	}
	return p
}

// compiler makes the plans of a type and of all types reachable from it. Since types may be
// recursive, plan returns incomplete plans, and planOf publishes them all when complete.
type compiler map[reflect.Type]*plan

func (c compiler) plan(t reflect.Type) *plan {
	p := c[t]
	if p == nil {
		p = &plan{size: t.Size()}
		c[t] = p
		c.add(p, t, 0)
		p.alloc = allocated(p.size, p.leads())
	}
	return p
}

func (c compiler) add(p *plan, t reflect.Type, at uintptr) {
	if opaque(t) {
		return
	}
	r := ref{offset: at, kind: t.Kind()}
	switch r.kind {
	case reflect.String:
		p.strings = append(p.strings, at)
		return
	case reflect.Struct:
		for i := range t.NumField() {
			c.add(p, t.Field(i).Type, at+t.Field(i).Offset)
		}
		return
	case reflect.Array:
		for i := 0; i < t.Len() && c.plan(t.Elem()).leads(); i++ {
			c.add(p, t.Elem(), at+uintptr(i)*t.Elem().Size())
		}
		return
	case reflect.Pointer, reflect.Slice:
		r.elem = c.plan(t.Elem())
	case reflect.Map:
		r.key, r.elem = c.plan(t.Key()), c.plan(t.Elem())
		if t.Key().Kind() != reflect.String || t.Elem().Kind() != reflect.String {
			r.entries = &sync.Pool{New: func() any {
				return &entry{reflect.New(t), reflect.New(t.Key()), reflect.New(t.Elem())}
			}}
		}
	case reflect.Interface:
		r.methods = t.NumMethod() > 0
	default:
		return
	}
	p.refs = append(p.refs, r)
}

// opaque reports whether values refer to memory shared by the process or guarded by a lock.
func opaque(t reflect.Type) bool {
	switch t.PkgPath() {
	case "time", "reflect", "context", "runtime", "sync":
		return true
	}
	for i := 0; t.Kind() == reflect.Struct && i < t.NumField(); i++ {
		f := t.Field(i).Type
		if f.Kind() == reflect.Array {
			f = f.Elem() // [0]sync.Mutex prevents copying a struct
		}
		if f.PkgPath() == "sync" {
			return true
		}
	}
	return false
}
