// SPDX-License-Identifier: Apache-2.0

// Package funcvalue compares functions, which Go itself does not.
package funcvalue

import (
	"reflect"
	"unsafe"
)

// ID is the identity of a function value, the zero value that of nil.
type ID struct{ function unsafe.Pointer }

// Of returns the identity of a function value. Two values with one
// identity are the same function and have captured the same variables. A
// declared function has one identity in the whole program; a closure that
// captures variables, and a method value, have another one each time they are
// made. An ID
// keeps its function alive.
func Of[F any](function F) ID {
	if reflect.TypeFor[F]().Kind() != reflect.Func {
		panic("funcvalue.Of: " + reflect.TypeFor[F]().String() + " is no function type")
	}
	return ID{*(*unsafe.Pointer)(unsafe.Pointer(&function))} // a function value is one pointer
}

// Code returns the address of a function's code, 0 for nil. All closures of one
// place in the source have the same code, whatever they have captured.
func Code(function any) uintptr {
	if v := reflect.ValueOf(function); v.IsValid() && !v.IsNil() {
		return v.Pointer()
	}
	return 0
}
