// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"bytes"
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

// Serializer wraps stock. The encoders make the same bytes as stock's, and use kept bytes
// for lists that Note has recorded. From now on Note records. Nobody may have changed
// anything below the top level of the items, which is shared with the cache. A serializer
// that Serializer has returned is returned as it is.
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

// syntaxOf returns the syntax of an encoder's output, and false unless the encoder is the
// serializer's own for compact JSON or for protobuf. Indented JSON, YAML and CBOR, whose
// keys are shuffled, are left to the encoder.
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

// encode is the server's own encoder of one format and version.
type encode func(runtime.Object, io.Writer) error

// formatID names a format among those of one serializer: lists of one type, as
// one encoder writes them.
type formatID struct {
	encoder runtime.Identifier
	list    reflect.Type
}

// format holds the properties learnt about a format.
type format struct {
	id     formatID
	syntax syntax
	seed   uint64 // differs from those of other formats
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
// below the top level, which the cache shares with all readers. Unstructured objects are
// maps, so it is false for them.
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

// deferred makes the missing chunks of a list in batches when their turn to be written
// comes: only one batch of a list that does not fit into the budget is in memory.
type deferred struct {
	encoder *templateEncoder
	// whole is the server's own encoder, for the case that a batch can't be made: the
	// bytes written until then are the beginning of its output.
	whole encodeTo
}

// encodeTo writes one list.
type encodeTo = func(io.Writer) error

// leastKept is which part of a list has to be there for the rest to be made while the
// list is written: with less, the server's own encoder costs no more.
const leastKept = 16

// laterPossible reports whether the chunks that parts lack can be made while the list is
// written: the format needs no length of the whole before the first item, the server
// compresses the list whatever the rest's length, and enough is there to be worth it.
func (f *format) laterPossible(parts []part) bool {
	if f.syntax != jsonSyntax || !f.proven.Load() || checkEach {
		return false
	}
	length, items, there := 0, 0, 0
	for i := range parts {
		p := &parts[i]
		items += len(p.elements)
		if p.chunk != nil {
			length += p.chunk.length()
			there += len(p.elements)
		}
	}
	return length > compressedFrom && there >= items/leastKept
}

// proveSome is prove for the first parts of a list, which have chunks: a list that does not
// fit is never in memory as a whole.
func (t *templateEncoder) proveSome(a *assembly, parts int) {
	if a.format.proven.Load() {
		return
	}
	some := &assembly{format: a.format, frame: a.frame, parts: a.parts[:parts]}
	last := &some.parts[parts-1]
	positions := make([]int, last.first+len(last.elements))
	for i := range positions {
		positions[i] = i
	}
	a.format.prove(some.writePlain, func(w io.Writer) error {
		list, err := t.subset(positions)
		if err != nil {
			return err
		}
		return t.stock(list, w)
	})
}

// make makes the chunk of a part, and of some after it.
func (d *deferred) make(a *assembly, at int) error {
	_, _, err := d.encoder.batch(a, at)
	return err
}

// writeFrom writes the list from a byte on.
func (d *deferred) writeFrom(w io.Writer, begin int) error {
	return d.whole(&skipping{to: w, left: begin})
}

// deflatedFrom returns the items of the list from a byte on, compressed as one.
func (d *deferred) deflatedFrom(begin int, tail []byte) (*deflated, error) {
	var b bytes.Buffer
	if err := d.writeFrom(&b, begin); err != nil {
		return nil, err
	}
	items, ok := bytes.CutSuffix(b.Bytes(), tail)
	if !ok {
		return nil, errFrame
	}
	return deflate(items), nil
}

// skipping is a writer that leaves out the first bytes.
type skipping struct {
	to   io.Writer
	left int
}

// Write implements io.Writer.
func (s *skipping) Write(p []byte) (int, error) {
	skip := min(s.left, len(p))
	s.left -= skip
	if skip == len(p) {
		return len(p), nil
	}
	n, err := s.to.Write(p[skip:])
	return skip + n, err
}
