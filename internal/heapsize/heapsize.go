// SPDX-License-Identifier: Apache-2.0

// Package heapsize estimates the memory that a decoded object takes: the
// struct and all that its pointers, strings, slices, maps and interfaces
// lead to, with what the allocator rounds up.
//
// [Of] makes a plan of each type once, by reflection: at which offsets the
// type has strings, and at which it has other references. Sizing an object is
// then a walk over those places in memory, which does not allocate and needs no
// method of the object, so that internal types, which have no serialization
// of their own, are counted as exactly as versioned ones.
//
// The estimate is that of a freshly decoded object, in which every string has
// memory of its own. Where several references share memory, each is counted:
// the estimate is then above the truth. The estimate is below the truth in
// these places, which are counted as the words that they take and not followed:
// functions, channels, unsafe pointers, types of the packages time, reflect,
// context, runtime and sync, and structs that have a field of package sync,
// because the others of their fields may be guarded by it.
package heapsize

import (
	"reflect"
	"sync"
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
// for a nil pointer.
//
// v must not be written to meanwhile.
func Of(v any) int64 {
	w := walk{visits: maxVisits}
	w.any(v)
	return int64(w.bytes)
}

// walk is one walk over a value.
type walk struct {
	bytes uintptr
	// visits and depth are how many values may still be visited, and how deep
	// the walk is.
	visits, depth int
}

// text counts the memory of a string.
func (w *walk) text(s string) { w.bytes += allocated(uintptr(len(s)), false) }

// any counts what an interface holds. Of the types of decoded JSON it knows
// without a plan what that is.
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

// boxed counts what an interface holds, of whatever type.
func (w *walk) boxed(v reflect.Value) {
	p := planOf(v.Type())
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Map {
		word := v.UnsafePointer() // the interface holds it without a box
		w.value(unsafe.Pointer(&word), p)
		return
	}
	w.bytes += p.alloc
	copied := reflect.New(v.Type()) // such values are not in decoded objects
	copied.Elem().Set(v)
	w.value(copied.UnsafePointer(), p)
}

// value counts the memory below the value at v, which has the plan p, without the value
// itself.
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
		// The first word of all of them is zero in a value without reference,
		// which most are.
		if *(*unsafe.Pointer)(at) != nil {
			w.follow(at, r)
		}
	}
	w.depth--
}

// follow counts the memory below the reference at v, which is not nil.
func (w *walk) follow(v unsafe.Pointer, r *ref) {
	switch r.kind {
	case reflect.Pointer:
		w.bytes += r.elem.alloc
		w.value(*(*unsafe.Pointer)(v), r.elem)
	case reflect.Slice:
		s := *(*[]byte)(v) // slices of all types are laid out alike
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
			w.any(*(*interface{ M() })(v)) // which ones does not matter
		} else {
			w.any(*(*any)(v))
		}
	}
}

// entries counts the memory below the entries of the map at v.
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

// plan says where the values of one type refer to other memory. A plan does not
// change once it is published.
type plan struct {
	// size is that of a value; alloc what the allocator takes for one.
	size, alloc uintptr
	// strings are the offsets of the strings in a value, which is what it has
	// most of; refs are its other references.
	strings []uintptr
	refs    []ref
}

// leads reports whether a value can refer to other memory that is counted.
func (p *plan) leads() bool { return len(p.strings)+len(p.refs) > 0 }

// ref is one reference in a value: a pointer, slice, map or interface.
type ref struct {
	offset    uintptr
	kind      reflect.Kind
	methods   bool       // of an interface
	key, elem *plan      // of its target, if it is not an interface
	entries   *sync.Pool // of a map, unless it is one of strings by strings: *entry
}

// entry has room for a map and one of its entries, all three as pointers. With it,
// reflection walks maps without allocating.
type entry struct{ table, key, elem reflect.Value }

// plans are those of all types met so far, *plan by reflect.Type.
var plans sync.Map

// jsonKey and jsonValue are the plans of the keys and values in decoded JSON.
var jsonKey, jsonValue = planOf(reflect.TypeFor[string]()), planOf(reflect.TypeFor[any]())

// planOf returns the plan of a type and makes it if there is none.
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

// compiler makes the plans of a type and of all types that it leads to. Types
// may lead back to themselves: a plan is known before it is complete, and only
// published when all are.
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

// add adds to p the references of a value of type t at an offset.
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

// opaque reports whether values of the type are not followed: what they refer to
// is shared by the whole process, or guarded by a lock.
func opaque(t reflect.Type) bool {
	switch t.PkgPath() {
	case "time", "reflect", "context", "runtime", "sync":
		return true
	}
	for i := 0; t.Kind() == reflect.Struct && i < t.NumField(); i++ {
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
