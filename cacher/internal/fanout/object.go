// SPDX-License-Identifier: Apache-2.0

package fanout

import (
	"bytes"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// object is the object of a watch event: an element behind a wall. All watchers
// of an element share its serializations, with the exception that replayed makes.
// A reader that wants the object itself gets a private copy, so that nothing that
// one watcher does reaches another.
type object struct {
	element   *watchcache.Element
	encodings *encodings
}

var (
	_ runtime.CacheableObject   = (*object)(nil)
	_ metav1.ObjectMetaAccessor = (*object)(nil)
)

// CacheEncode implements runtime.CacheableObject: of all writers with one
// identifier, the first encodes and the others get its bytes.
func (o *object) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	raw, err := o.encodings.of(o.element, string(id), func() ([]byte, error) {
		var buffer bytes.Buffer
		err := encode(o.GetObject(), &buffer)
		return buffer.Bytes(), err
	})
	if err != nil {
		return err
	}
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(raw)
		return nil
	}
	_, err = w.Write(raw)
	return err
}

// GetObject implements runtime.CacheableObject: it returns a copy.
func (o *object) GetObject() runtime.Object { return o.element.Object.DeepCopyObject() }

// DeepCopyObject implements runtime.Object: it returns a copy of the object
// itself, which then belongs to the caller alone.
func (o *object) DeepCopyObject() runtime.Object { return o.GetObject() }

// GetObjectKind implements runtime.Object. Writing to what it returns changes
// nothing.
func (o *object) GetObjectKind() schema.ObjectKind {
	return &metav1.TypeMeta{
		APIVersion: o.element.Object.GetObjectKind().GroupVersionKind().GroupVersion().String(),
		Kind:       o.element.Object.GetObjectKind().GroupVersionKind().Kind,
	}
}

// GetObjectMeta implements metav1.ObjectMetaAccessor: it returns the metadata
// of a copy.
func (o *object) GetObjectMeta() metav1.Object {
	accessor, err := meta.Accessor(o.GetObject())
	if err != nil {
		return &metav1.ObjectMeta{}
	}
	return accessor
}
