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

// object is the object of a watch event. All watchers of an element share its serializations.
// GetObject returns a private copy, so watchers can't affect each other.
//
// Initial events and events from the window share no Table and no serialization with shuffled keys,
// which the API server shuffles so that no client relies on their order. Events from the dispatcher
// are encoded once for all live watchers, shuffled or not; see dispatched.
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

func (o *object) encodeOnce(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	raw, err := o.encodings.of(o.element, string(id), o.encoder(encode))
	if err != nil {
		return err
	}
	return write(raw, w)
}

func (o *object) encodeAlone(encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	o.encodings.metrics.Encoded(false)
	return encode(o.GetObject(), w)
}

func (o *object) encoder(encode func(runtime.Object, io.Writer) error) func() ([]byte, error) {
	return func() ([]byte, error) {
		var buffer bytes.Buffer
		err := encode(o.GetObject(), &buffer)
		return buffer.Bytes(), err
	}
}

// write shares raw with w, so it must not change.
func write(raw []byte, w io.Writer) error {
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(raw)
		return nil
	}
	_, err := w.Write(raw)
	return err
}

// GetObject implements runtime.CacheableObject. It returns a private copy.
func (o *object) GetObject() runtime.Object { return o.element.Object.DeepCopyObject() }

// DeepCopyObject implements runtime.Object. It equals GetObject.
func (o *object) DeepCopyObject() runtime.Object { return o.GetObject() }

// GetObjectKind implements runtime.Object. It returns a copy.
func (o *object) GetObjectKind() schema.ObjectKind {
	return &metav1.TypeMeta{
		APIVersion: o.element.Object.GetObjectKind().GroupVersionKind().GroupVersion().String(),
		Kind:       o.element.Object.GetObjectKind().GroupVersionKind().Kind,
	}
}

// dispatched is the object of an event from the dispatcher.
type dispatched struct {
	object
	// tables holds the event as a Table. Cells depend on the time, so only the watchers that
	// receive this event now share them.
	tables watchcache.Encodings
}

// CacheEncode implements runtime.CacheableObject.
func (o *dispatched) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	switch {
	case !isTable(string(id)):
		return o.encodeOnce(id, encode, w)
	case !strings.Contains(string(id), "noHeaders"):
		// The first event of a stream has the columns. The API server omits them from the next
		// events only if its own encoder wrote the first.
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

// isTable reports whether the encoder with this identifier writes Tables. Their cells depend on the
// time and the watch, so we don't keep them with the element.
func isTable(id string) bool { return strings.Contains(id, "Kind=Table") }

// shuffles reports whether the encoder with this identifier may vary the order of map keys. Only
// CBOR's does (runtime.NondeterministicEncoder), under the identifier of the deterministic encoder.
// The identifiers of versions, tables and watches nest JSON in JSON, so CBOR's is in quotes,
// escaped or not.
func shuffles(id string) bool {
	if !strings.Contains(id, "cbor") { // fast path
		return false
	}
	return id == "cbor" || strings.Contains(id, `"cbor"`) || strings.Contains(id, `"cbor\`)
}
