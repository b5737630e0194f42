// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
)

// protobufSize is what generated types with a protobuf encoding have.
type protobufSize interface{ Size() int }

// unstructuredNode is about what a map entry or list element of decoded JSON
// takes: a key, an interface and its share of the map.
const unstructuredNode = 64

// sizeOf estimates the memory that a decoded object takes, in bytes. It is
// exact enough to compare objects and to bound their sum, and cheap enough to
// be asked of each object once.
func sizeOf(object runtime.Object) int64 {
	switch object := object.(type) {
	case runtime.Unstructured:
		return sizeOfValue(object.UnstructuredContent())
	case protobufSize:
		// What is encoded lies in memory once, beside the struct itself.
		return int64(object.Size()) + structSize(object)
	}
	// Nothing cheap is known of the type: its struct, and as much again.
	return 2 * structSize(object)
}

func structSize(object any) int64 {
	t := reflect.TypeOf(object)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return int64(t.Size())
}

func sizeOfValue(value any) int64 {
	size := int64(unstructuredNode)
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			size += int64(len(key)) + sizeOfValue(v)
		}
	case []any:
		for _, v := range value {
			size += sizeOfValue(v)
		}
	case string:
		size += int64(len(value))
	}
	return size
}
