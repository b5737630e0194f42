// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"hash/maphash"
	"io"
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Serializer wraps stock, unless it did before, and enables Note. The encoders' output is that of
// stock, but uses kept bytes for lists recorded by Note. Below the top level, items are shared with
// the cache and must not change.
func (l *Encoder) Serializer(stock runtime.NegotiatedSerializer) runtime.NegotiatedSerializer {
	if wrapped, ok := stock.(*serializer); ok && wrapped.listings == l {
		return wrapped
	}
	l.on.Store(true)
	return &serializer{NegotiatedSerializer: stock, listings: l}
}

type serializer struct {
	runtime.NegotiatedSerializer
	listings *Encoder
	formats  sync.Map // of formatID to *format
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (s *serializer) EncoderForVersion(encoder runtime.Encoder, version runtime.GroupVersioner) runtime.Encoder {
	stock := s.NegotiatedSerializer.EncoderForVersion(encoder, version)
	syntax, ok := s.syntaxOf(encoder)
	if !ok {
		return stock
	}
	made := &listEncoder{Encoder: stock, serializer: s, syntax: syntax}
	if allocating, ok := stock.(runtime.EncoderWithAllocator); ok {
		return &allocatingListEncoder{listEncoder: made, stock: allocating}
	}
	return made
}

// syntaxOf returns the syntax of the serializer's encoder for compact JSON or protobuf, and false
// for others. Indented JSON and YAML aren't supported, nor CBOR, which shuffles keys.
func (s *serializer) syntaxOf(encoder runtime.Encoder) (syntax, bool) {
	if encoder == nil || !reflect.TypeOf(encoder).Comparable() {
		return 0, false
	}
	for _, info := range s.SupportedMediaTypes() {
		if info.Serializer == nil || !reflect.TypeOf(info.Serializer).Comparable() || runtime.Encoder(info.Serializer) != encoder {
			continue
		}
		switch info.MediaType {
		case runtime.ContentTypeJSON:
			return jsonSyntax, true
		case runtime.ContentTypeProtobuf:
			return protobufSyntax, true
		}
	}
	return 0, false
}

type listEncoder struct {
	runtime.Encoder
	serializer *serializer
	syntax     syntax
}

// Encode implements runtime.Encoder.
func (e *listEncoder) Encode(object runtime.Object, w io.Writer) error {
	return e.encode(object, w, e.Encoder.Encode)
}

func (e *listEncoder) encode(object runtime.Object, w io.Writer, stock encode) error {
	noted := e.serializer.listings.find(object)
	if noted != nil && noted.wanted != nil {
		return e.represent(noted, object, w)
	}
	if noted != nil {
		if a := e.assemble(object, noted, stock); a != nil {
			return a.write(w)
		}
	}
	return stock(object, w)
}

type allocatingListEncoder struct {
	*listEncoder
	stock runtime.EncoderWithAllocator
}

var _ runtime.EncoderWithAllocator = (*allocatingListEncoder)(nil)

// EncodeWithAllocator implements runtime.EncoderWithAllocator.
func (e *allocatingListEncoder) EncodeWithAllocator(object runtime.Object, w io.Writer, memory runtime.MemoryAllocator) error {
	return e.encode(object, w, func(object runtime.Object, w io.Writer) error {
		return e.stock.EncodeWithAllocator(object, w, memory)
	})
}

type encode func(runtime.Object, io.Writer) error

// formatID identifies a format of a serializer by encoder and list type.
type formatID struct {
	encoder runtime.Identifier
	list    reflect.Type
}

type format struct {
	id     formatID
	syntax syntax
	seed   uint64 // differs between formats
	// proven is true once a list equaled the output of the server's encoder, refused once one did
	// not. A refused format is never used again.
	proven, refused atomic.Bool
	// proving is held while a list is compared, making (acquired after it) while chunks are made,
	// so that concurrent lists do this once.
	proving sync.Mutex
	making  sync.Mutex
}

func newFormat(id formatID, s syntax) *format {
	return &format{id: id, syntax: s, seed: maphash.Comparable(seed, id)}
}

func (s *serializer) format(id formatID, syntax syntax) *format {
	return loaded(&s.formats, id, func() *format { return newFormat(id, syntax) })
}

func loaded[V any](m *sync.Map, key any, made func() V) V {
	if v, ok := m.Load(key); ok {
		return v.(V)
	}
	v, _ := m.LoadOrStore(key, made())
	return v.(V)
}

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

// unchanged reports whether the items are the elements' objects as a cache copies them, i.e. the
// top level by value, everything below shared and read-only. It is false if a registry changed,
// added, removed or sorted items, and for unstructured objects, which are maps.
func unchanged(items reflect.Value, elements []*watchcache.Element) bool {
	if items.Len() != len(elements) {
		return false
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
