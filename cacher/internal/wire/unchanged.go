// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"reflect"
	"unsafe"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// itemsOf returns a list's items, and false unless they are a slice.
func itemsOf(list runtime.Object) (reflect.Value, bool) {
	pointer, err := meta.GetItemsPtr(list)
	if err != nil {
		return reflect.Value{}, false
	}
	items, err := conversion.EnforcePtr(pointer)
	if err != nil || items.Kind() != reflect.Slice {
		return reflect.Value{}, false
	}
	return items, true
}

// unchanged reports whether the items are the elements' objects, as a cache
// copies them: their top level, with everything below shared. A registry that
// has changed, added, removed or sorted items makes it false. Nobody may write
// below the top level, which the cache shares with all readers.
func unchanged(items reflect.Value, elements []*watchcache.Element) bool {
	if items.Len() != len(elements) {
		return false
	}
	if list, ok := items.Interface().([]unstructured.Unstructured); ok {
		for i, e := range elements {
			object, ok := e.Object.(*unstructured.Unstructured)
			if !ok || !sameContent(list[i].Object, object.Object) {
				return false
			}
		}
		return true
	}
	item := items.Type().Elem()
	if item.Kind() != reflect.Struct || reflect.PointerTo(item).Implements(reflect.TypeFor[runtime.Unstructured]()) {
		return false
	}
	want, size := reflect.PointerTo(item), item.Size()
	first := items.Index(0).Addr().UnsafePointer()
	for i, e := range elements {
		object := reflect.ValueOf(e.Object)
		if object.Type() != want {
			return false
		}
		copied := unsafe.Slice((*byte)(unsafe.Add(first, uintptr(i)*size)), size)
		if !bytes.Equal(copied, unsafe.Slice((*byte)(object.UnsafePointer()), size)) {
			return false
		}
	}
	return true
}

// sameContent reports whether two unstructured contents have the same values,
// and their metadata too.
func sameContent(a, b map[string]any) bool {
	return sameValues(a, b, func(key string, x, y any) bool {
		if key != "metadata" {
			return false
		}
		inX, okX := x.(map[string]any)
		inY, okY := y.(map[string]any)
		return okX && okY && sameValues(inX, inY, nil)
	})
}

// sameValues reports whether two maps have one value under each key: the same
// value in memory, or what or accepts.
func sameValues(a, b map[string]any, or func(key string, x, y any) bool) bool {
	if len(a) != len(b) {
		return false
	}
	for key, x := range a {
		y, ok := b[key]
		if !ok || (!sameValue(x, y) && (or == nil || !or(key, x, y))) {
			return false
		}
	}
	return true
}

// sameValue reports whether two interface values are one value in memory: have
// one type and one address. Equal values elsewhere in memory don't count.
func sameValue(x, y any) bool {
	return *(*[2]unsafe.Pointer)(unsafe.Pointer(&x)) == *(*[2]unsafe.Pointer)(unsafe.Pointer(&y))
}
