// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
)

// equal reports whether object, with a missing UID and creationTimestamp inherited, equals as
// except for the resourceVersion.
func equal(object, scratch runtime.Object, as *Version) bool {
	object = withVersion(object, scratch, as.RV)
	inherit(object, as.Object)
	// Most equal objects are deeply equal, which is cheap to check. Don't call Equal on whole
	// objects: it may skip the metadata.
	return reflect.DeepEqual(object, as.Object) || sameParts(reflect.ValueOf(object).Elem(), reflect.ValueOf(as.Object).Elem())
}

// same extends equality.Semantic to all types: it calls Equal methods, and compares unexported
// fields like reflect.DeepEqual.
func same(a, b reflect.Value) bool {
	if !b.IsValid() || a.Type() != b.Type() {
		return false
	}
	if kind := a.Kind(); (kind == reflect.Pointer || kind == reflect.Interface) && (a.IsNil() || b.IsNil()) {
		return a.IsNil() == b.IsNil()
	}
	if function, onPointers := equalOf(a.Type()); onPointers {
		return function.Call([]reflect.Value{pointerTo(a), pointerTo(b)})[0].Bool()
	} else if function.IsValid() {
		return function.Call([]reflect.Value{a, b})[0].Bool()
	}
	return sameParts(a, b)
}

func sameParts(a, b reflect.Value) bool {
	n, part := 0, reflect.Value.Index
	switch a.Kind() {
	case reflect.Pointer, reflect.Interface:
		return same(a.Elem(), b.Elem())
	case reflect.Map:
		for entries := a.MapRange(); entries.Next(); {
			if !same(entries.Value(), b.MapIndex(entries.Key())) {
				return false
			}
		}
		return a.Len() == b.Len()
	case reflect.Slice, reflect.Array:
		if n = a.Len(); n != b.Len() {
			return false
		}
	case reflect.Struct:
		n, part = a.NumField(), reflect.Value.Field
	default:
		return a.Comparable() && a.Equal(b)
	}
	hiddenA, hiddenB := pointerTo(a), pointerTo(b) // a struct's unexported fields
	for i := range n {
		if x := part(a, i); !x.CanInterface() {
			continue
		} else if !same(x, part(b, i)) {
			return false
		}
		if a.Kind() == reflect.Struct {
			hiddenA.Elem().Field(i).SetZero()
			hiddenB.Elem().Field(i).SetZero()
		}
	}
	return a.Kind() != reflect.Struct || reflect.DeepEqual(hiddenA.Interface(), hiddenB.Interface())
}

// equalOf returns a type's comparison function from equality.Semantic or its Equal method, on
// values or pointers.
func equalOf(t reflect.Type) (function reflect.Value, onPointers bool) {
	if function, ok := equality.Semantic.Equalities[t]; ok || t.Kind() == reflect.Interface || t.PkgPath() == "" && t.Kind() != reflect.Pointer {
		return function, false
	}
	for _, of := range []reflect.Type{t, reflect.PointerTo(t)} {
		m, ok := of.MethodByName("Equal")
		if ok && m.Type.NumIn() == 2 && m.Type.In(1) == of && m.Type.NumOut() == 1 && m.Type.Out(0).Kind() == reflect.Bool {
			return m.Func, of != t
		}
	}
	return function, false
}

func pointerTo(v reflect.Value) reflect.Value {
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p
}

// CheckType returns an error with the path of an incomparable field. Callers pass an empty seen.
func CheckType(t reflect.Type, path string, seen map[reflect.Type]bool) error {
	if function, _ := equalOf(t); seen[t] || len(seen) > 0 && function.IsValid() {
		return nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Func:
		return fmt.Errorf("%s is a %v, which can't be compared", path, t)
	case reflect.Slice, reflect.Array, reflect.Map, reflect.Pointer:
		return CheckType(t.Elem(), path, seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if err := CheckType(t.Field(i).Type, path+"."+t.Field(i).Name, seen); err != nil {
				return err
			}
		}
	}
	return nil
}
