// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// object is the object of a watch event: an element behind a wall. All watchers of an
// element share its serializations. A reader that wants the object itself gets a private
// copy, so that nothing that one watcher does reaches another.
//
// Initial events and those from the window share no serialization that an encoder has
// shuffled, and no Table. The API server shuffles so that no client relies on the order of
// keys. Events that the dispatcher delivers are encoded once for all live watchers, shuffled
// or not; see dispatched.
type object struct {
	element   *watchcache.Element
	encodings *keptEncodings
}

var (
	_ runtime.CacheableObject   = (*object)(nil)
	_ runtime.CacheableObject   = (*dispatched)(nil)
	_ metav1.ObjectMetaAccessor = (*object)(nil)
	_ metav1.Object             = (*object)(nil)
)

// CacheEncode implements runtime.CacheableObject.
func (o *object) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	if shuffles(string(id)) || isTable(string(id)) {
		return o.encodeAlone(encode, w)
	}
	return o.encodeOnce(id, encode, w)
}

// encodeOnce shares the serialization: of all writers with one identifier, the first encodes
// and the others get its bytes.
func (o *object) encodeOnce(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	raw, err := o.encodings.of(o.element, string(id), o.encoder(encode))
	if err != nil {
		return err
	}
	return write(raw, w)
}

// encodeAlone shares nothing.
func (o *object) encodeAlone(encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	o.encodings.metrics.Encoded(false)
	return encode(o.GetObject(), w)
}

// encoder returns a function that encodes a copy of the object.
func (o *object) encoder(encode func(runtime.Object, io.Writer) error) func() ([]byte, error) {
	return func() ([]byte, error) {
		var buffer bytes.Buffer
		err := encode(o.GetObject(), &buffer)
		return buffer.Bytes(), err
	}
}

// write writes a serialization that nobody changes.
func write(raw []byte, w io.Writer) error {
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(raw)
		return nil
	}
	_, err := w.Write(raw)
	return err
}

// GetObject implements runtime.CacheableObject: it returns a copy.
func (o *object) GetObject() runtime.Object { return o.element.Object.DeepCopyObject() }

// DeepCopyObject implements runtime.Object: it returns a copy of the object
// itself, which then belongs to the caller alone.
func (o *object) DeepCopyObject() runtime.Object { return o.GetObject() }

// GetObjectKind implements runtime.Object. It returns a copy.
func (o *object) GetObjectKind() schema.ObjectKind {
	return &metav1.TypeMeta{
		APIVersion: o.element.Object.GetObjectKind().GroupVersionKind().GroupVersion().String(),
		Kind:       o.element.Object.GetObjectKind().GroupVersionKind().Kind,
	}
}

// dispatched is the object of an event that the dispatcher sends to live watchers.
type dispatched struct {
	object
	// tables has the event as a Table. Cells depend on the time, so they are shared by
	// the watchers that get this event now, and kept for nobody else.
	tables watchcache.Encodings
}

// CacheEncode implements runtime.CacheableObject.
func (o *dispatched) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	switch {
	case !isTable(string(id)):
		return o.encodeOnce(id, encode, w)
	case !strings.Contains(string(id), "noHeaders"):
		// The first event of a stream has the columns. The API server leaves them out
		// of the next ones only after its own encoder has written the first.
		return o.encodeAlone(encode, w)
	}
	raw, created, err := o.tables.Get(string(id), o.encoder(encode))
	o.encodings.metrics.Encoded(!created)
	if err != nil {
		o.tables.Drop(string(id))
		return err
	}
	return write(raw, w)
}

// isTable reports whether the encoder with the identifier writes Tables. Their cells
// depend on the time and on the watch, so they are not kept with the element.
func isTable(id string) bool { return strings.Contains(id, "Kind=Table") }

// shuffles reports whether the encoder with the identifier may write the keys of maps in
// another order each time. If CBOR is served, its encoder does, under the same identifier
// as the deterministic one; no other format has such an encoder
// (runtime.NondeterministicEncoder). The identifiers of versions, tables and watches are
// JSON in JSON, with CBOR's in quotes, escaped or not.
func shuffles(id string) bool {
	if !strings.Contains(id, "cbor") { // nearly always, and quick
		return false
	}
	return id == "cbor" || strings.Contains(id, `"cbor"`) || strings.Contains(id, `"cbor\`)
}
