// SPDX-License-Identifier: Apache-2.0

package heapsize

import (
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
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

// plans are those of all types met so far. The map is copied to add to it:
// there are few types, and each is met for the first time once.
var plans struct {
	published atomic.Pointer[map[reflect.Type]*plan]
	adding    sync.Mutex
}

// planOf returns the plan of a type and makes it if there is none.
func planOf(t reflect.Type) *plan {
	if known := plans.published.Load(); known != nil {
		if p := (*known)[t]; p != nil {
			return p
		}
	}
	plans.adding.Lock()
	defer plans.adding.Unlock()
	c := compiler{plans: make(map[reflect.Type]*plan)}
	if known := plans.published.Load(); known != nil {
		maps.Copy(c.plans, *known)
	}
	p := c.plan(t)
	plans.published.Store(&c.plans)
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
