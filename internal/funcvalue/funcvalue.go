// SPDX-License-Identifier: Apache-2.0

// Package funcvalue compares functions.
package funcvalue

import (
	"reflect"
	"unsafe"
)

// ID identifies a function value. The zero ID is that of nil.
type ID struct{ function unsafe.Pointer }

// Of returns the identity of a function value. Values with the same identity are the same function
// with the same captured variables. A declared function has one identity; each evaluation of a
// method value, or of a closure that captures variables, has a new one. An ID keeps its function
// alive.
func Of[F any](function F) ID {
	if reflect.TypeFor[F]().Kind() != reflect.Func {
		panic("funcvalue.Of: " + reflect.TypeFor[F]().String() + " is no function type")
	}
	return ID{*(*unsafe.Pointer)(unsafe.Pointer(&function))} // a function value is one pointer
}

// Code returns the address of a function's code, or 0 for nil. All closures of one source location
// share their code.
func Code(function any) uintptr {
	if v := reflect.ValueOf(function); v.IsValid() && !v.IsNil() {
		return v.Pointer()
	}
	return 0
}
