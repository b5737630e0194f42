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
// the metadata in it; for an unstructured one the two maps that stand for
// them. What is below is shared with the cache.

// assign makes into, which is settable, a copy of the element's object; one
// that shares nothing if private. It fails if the object is of another type.
func assign(into reflect.Value, e *watchcache.Element, private bool) error {
	want := reflect.PointerTo(into.Type())
	object := e.Object
	if private {
		object = object.DeepCopyObject()
	} else if _, ok := object.(runtime.Unstructured); ok {
		object = ownTop(object)
	}
	if reflect.TypeOf(object) != want {
		return wrongType(object, want)
	}
	into.Set(reflect.ValueOf(object).Elem())
	return nil
}

// fillChunk is how many objects fill looks up before it copies them: their
// addresses come from memory, one after another, and copying need not wait for
// each.
const fillChunk = 32

// fill makes the items of exactly the elements' objects: never nil, so that an
// empty list encodes as one. It fails if the items are of another type.
func fill(items reflect.Value, elements []*watchcache.Element) error {
	slice := reflect.MakeSlice(items.Type(), len(elements), len(elements))
	if len(elements) == 0 {
		items.Set(slice)
		return nil
	}
	want := reflect.PointerTo(items.Type().Elem())
	_, own := elements[0].Object.(runtime.Unstructured) // and so are all others
	var objects [fillChunk]reflect.Value
	for done := 0; done < len(elements); done += fillChunk {
		chunk := elements[done:min(done+fillChunk, len(elements))]
		for i, e := range chunk {
			object := e.Object
			if own {
				object = ownTop(object)
			}
			if reflect.TypeOf(object) != want {
				return wrongType(object, want)
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

func wrongType(object runtime.Object, want reflect.Type) error {
	return fmt.Errorf("the cache holds objects of type %T, not %v", object, want)
}

// ownTop returns an unstructured object with a content and metadata of its
// own.
func ownTop(object runtime.Object) runtime.Object {
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
