// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/dump"
)

// codecAnswers is what a codec says of the objects of a Go type: its identifier,
// and what becomes of an empty and of a named object that it encodes, and decodes
// into one of the same type and into its hub version.
type codecAnswers struct {
	id           runtime.Identifier
	empty, named string
}

// declaredCodec returns what is equal for codecs that read and write the objects
// of newObject alike.
//
// A codec's identifier is that of its encoder; neither the version it decodes
// to, nor the scheme or the schema by which it converts and defaults, is in it.
// For a Go type, trying it tells. For objects without a Go type it is a matter
// of the object's content, and a conversion may be a call to a webhook: such a
// codec is like itself only. Kubernetes makes a codec for each version of a
// custom resource, and others when the definition has changed.
func declaredCodec(codec runtime.Codec, newObject func() runtime.Object) any {
	if codec == nil || newObject == nil {
		return comparableOrUnique(codec)
	}
	if _, ok := newObject().(runtime.Unstructured); ok {
		return comparableOrUnique(codec)
	}
	return codecAnswers{codec.Identifier(), answersOf(codec, newObject, ""), answersOf(codec, newObject, "name")}
}

func answersOf(codec runtime.Codec, newObject func() runtime.Object, name string) (described string) {
	defer func() {
		if p := recover(); p != nil {
			described = fmt.Sprint(p) // the codec is for objects that have more
		}
	}()
	object := newObject()
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetName(name)
	}
	encoded, err := runtime.Encode(codec, object)
	if err != nil {
		return err.Error()
	}
	into := newObject()
	_, _, intoErr := codec.Decode(encoded, nil, into)
	hub, hubErr := runtime.Decode(codec, encoded)
	return fmt.Sprintf("%q %s %v %T %s %v", encoded, dump.ForHash(into), intoErr, hub, dump.ForHash(hub), hubErr)
}

// comparableOrUnique returns v if it can be compared, and otherwise a value that
// is equal to nothing.
func comparableOrUnique(v any) any {
	if v != nil && !reflect.ValueOf(v).Comparable() {
		return new(byte)
	}
	return v
}
