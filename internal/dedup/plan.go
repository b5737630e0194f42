// SPDX-License-Identifier: Apache-2.0

package dedup

import (
	"reflect"
	"sync"
	"unsafe"

	"k8s.io/apimachinery/pkg/api/resource"
)

// plan says where the values of one type refer to other memory. A plan does not
// change once it is published.
type plan struct {
	size uintptr
	// never: such values are neither shared nor looked at, because readers may
	// write to them.
	never bool
	// strings are the offsets of the strings in a value; refs are its other
	// references.
	strings []uintptr
	refs    []ref
}

// ref is one reference in a value.
type ref struct {
	offset uintptr
	kind   refKind
	count  int   // of an array
	elem   *plan // of what a pointer, slice or array leads to
}

type refKind uint8

const (
	pointer refKind = iota
	slice
	array        // in place
	anyInterface // without methods
	texts        // laid out as a map[string]string
	anys         // laid out as a map[string]any
	bytes        // laid out as a map[string][]byte
	quantities   // laid out as a map[string]resource.Quantity
)

// plans are those of all types met so far, by reflect.Type.
var plans sync.Map

// planOf returns the plan of a type and makes it if there is none.
func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	// Types may lead back to themselves, so that all that a type leads to is made
	// before it is published. Two goroutines may make the same plan.
	c := compiler{}
	p := c.plan(t)
	for t, p := range c {
		plans.LoadOrStore(t, p)
	}
	return p
}

type compiler map[reflect.Type]*plan

func (c compiler) plan(t reflect.Type) *plan {
	if p := c[t]; p != nil {
		return p
	}
	p := &plan{size: t.Size()}
	c[t] = p
	c.add(p, t, 0)
	return p
}

// add adds to p the references of a value of type t at an offset. References that
// add leaves out are compared as the words that they take.
func (c compiler) add(p *plan, t reflect.Type, at uintptr) {
	switch {
	case writtenByReaders(t):
		p.never = true
		return
	case shown(t):
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
		if kind, ok := mapKind(t); ok {
			p.refs = append(p.refs, ref{offset: at, kind: kind})
		}
	case reflect.Interface:
		if t.NumMethod() == 0 {
			p.refs = append(p.refs, ref{offset: at, kind: anyInterface})
		}
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			c.add(p, f.Type, at+f.Offset)
		}
	case reflect.Array:
		elem := c.plan(t.Elem())
		p.never = p.never || elem.never
		if t.Len() > 0 && len(elem.strings)+len(elem.refs) > 0 {
			p.refs = append(p.refs, ref{offset: at, kind: array, count: t.Len(), elem: elem})
		}
	}
}

// mapKind returns how maps of a type are walked, and false for those that are
// not.
func mapKind(t reflect.Type) (refKind, bool) {
	if t.Key().Kind() != reflect.String {
		return 0, false
	}
	switch elem := t.Elem(); {
	case elem.Kind() == reflect.String:
		return texts, true
	case elem.Kind() == reflect.Interface && elem.NumMethod() == 0:
		return anys, true
	case elem.Kind() == reflect.Slice && elem.Elem().Kind() == reflect.Uint8:
		return bytes, true
	case elem == reflect.TypeFor[resource.Quantity]():
		return quantities, true
	}
	return 0, false
}

// shown reports whether the words of such values say all of them: times are
// equal only with the same pointer to their zone, and handles are pointers to what
// is there once in the process.
func shown(t reflect.Type) bool {
	switch t.PkgPath() {
	case "time", "unique", "reflect", "context", "runtime":
		return true
	}
	return false
}

// writtenByReaders reports whether methods that only read write to such values.
func writtenByReaders(t reflect.Type) bool {
	switch t.PkgPath() {
	case "sync", "sync/atomic", "internal/sync":
		return true
	}
	return t == reflect.TypeFor[resource.Quantity]()
}

// sliceHeader is how Go lays out a slice.
type sliceHeader struct {
	data     unsafe.Pointer
	len, cap int
}

// eface is how Go lays out an interface without methods.
type eface struct {
	typ, word unsafe.Pointer
}
