// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"fmt"
	"maps"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// A read gives its caller a copy of each object, as deep as the caller may
// write: the object's top level. For a typed object that is its struct, with
// the metadata in it; for an unstructured one the two maps that stand for them.
// Everything below is shared with the cache.

// copyObject makes into, which is settable, a copy of the element's object; one
// that shares nothing if private. copyObject fails if the object is of another
// type.
func copyObject(into reflect.Value, e *watchcache.Element, private bool) error {
	want := reflect.PointerTo(into.Type())
	object := e.Object
	if private {
		object = object.DeepCopyObject()
	} else if _, ok := object.(runtime.Unstructured); ok {
		object = shallowCopy(object)
	}
	if reflect.TypeOf(object) != want {
		return wrongTypeError(object, want)
	}
	into.Set(reflect.ValueOf(object).Elem())
	return nil
}

// copyChunk is how many objects copyItems looks up before it copies them: their
// addresses come from memory, one after another, and copying need not wait for
// each.
const copyChunk = 32

// copyItems makes the items of exactly the elements' objects: never nil, so that an
// empty list encodes as one. copyItems fails if the items are of another type.
func copyItems(items reflect.Value, elements []*watchcache.Element) error {
	slice := reflect.MakeSlice(items.Type(), len(elements), len(elements))
	if len(elements) == 0 {
		items.Set(slice)
		return nil
	}
	want := reflect.PointerTo(items.Type().Elem())
	_, own := elements[0].Object.(runtime.Unstructured) // and so are all others
	var objects [copyChunk]reflect.Value
	for done := 0; done < len(elements); done += copyChunk {
		chunk := elements[done:min(done+copyChunk, len(elements))]
		for i, e := range chunk {
			object := e.Object
			if own {
				object = shallowCopy(object)
			}
			if reflect.TypeOf(object) != want {
				return wrongTypeError(object, want)
			}
			objects[i] = reflect.ValueOf(object).Elem()
		}
		for i := range chunk {
			slice.Index(done + i).Set(objects[i])
		}
	}
	items.Set(slice)
	return nil
}

func wrongTypeError(object runtime.Object, want reflect.Type) error {
	return fmt.Errorf("the cache holds objects of type %T, not %v", object, want)
}

// shallowCopy returns an unstructured object with a content and metadata of its
// own.
func shallowCopy(object runtime.Object) runtime.Object {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object.DeepCopyObject() // of a kind that nothing is known about
	}
	content := maps.Clone(u.Object)
	if metadata, ok := content["metadata"].(map[string]any); ok {
		content["metadata"] = maps.Clone(metadata)
	}
	return &unstructured.Unstructured{Object: content}
}
