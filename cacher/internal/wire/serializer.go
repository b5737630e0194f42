// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"io"
	"reflect"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
)

// Serializer returns a serializer whose encoders make the same bytes as those of
// stock, and take them, for lists that Note has recorded, from what is kept. From
// now on Note records. A serializer that Serializer has returned is returned as it is.
func (l *Listings) Serializer(stock runtime.NegotiatedSerializer) runtime.NegotiatedSerializer {
	if wrapped, ok := stock.(*serializer); ok && wrapped.listings == l {
		return wrapped
	}
	l.on.Store(true)
	return &serializer{NegotiatedSerializer: stock, listings: l}
}

type serializer struct {
	runtime.NegotiatedSerializer
	listings *Listings
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

// syntaxOf returns the syntax of what an encoder writes, and false unless it is
// the serializer's own for compact JSON or for protobuf. Indented JSON, YAML and
// CBOR, whose keys are shuffled, are left to the encoder.
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

// listEncoder is the encoder of one format and version.
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
	if f := e.serializer.listings.form(object); f != nil {
		return e.encodeForm(f, object, w)
	}
	if noted := e.serializer.listings.find(object); noted != nil {
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

// encode is the server's own encoder of one format and version.
type encode func(runtime.Object, io.Writer) error

// formatID names a format among those of one serializer: lists of one type, as
// one encoder writes them.
type formatID struct {
	encoder runtime.Identifier
	list    reflect.Type
}

// format is what was learnt about a format.
type format struct {
	id     formatID
	syntax syntax
	seed   uint64 // differs from those of other formats
	// separator stands between two items; nil until it was learnt.
	separator atomic.Pointer[[]byte]
	// proven: one list had the bytes that the server's own encoder made. refused:
	// one had not, or did not look as expected; nothing is kept from then on.
	proven, refused atomic.Bool
}

func (s *serializer) format(id formatID, syntax syntax) *format {
	if f, ok := s.formats.Load(id); ok {
		return f.(*format)
	}
	f, _ := s.formats.LoadOrStore(id, &format{id: id, syntax: syntax, seed: newFormatSeed(id)})
	return f.(*format)
}
