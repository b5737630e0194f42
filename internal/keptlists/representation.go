// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"context"
	"errors"
	"io"
	"reflect"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Representation is how a client asks for one list, if not as the list itself: as the
// metadata of its objects, or as a Table of rows with metadata, of meta.k8s.io/v1.
type Representation struct {
	// Encoder is the API server's own for such representations, of the media type in
	// which the list is written.
	Encoder runtime.Encoder
	// Table makes the Table, whose rows refer to the items of the list. Without Table,
	// the client asks for a PartialObjectMetadataList.
	Table func(ctx context.Context, list runtime.Object) (*metav1.Table, error)

	ctx     context.Context // of the request
	outcome atomic.Int32
}

// The outcomes of a Representation so far.
const (
	unused  int32 = iota
	written       // an encoder has begun to write the list in the representation
	refused       // an encoder was given the list, and has written nothing
)

// Unused reports whether the encoder was given no list that was filled for the request.
func (r *Representation) Unused() bool { return r.outcome.Load() == unused }

// Written reports whether an encoder has begun to write the list in the representation.
func (r *Representation) Written() bool { return r.outcome.Load() == written }

// Represent returns a context for a LIST that the encoders of Encoder write in a
// representation, and that nobody else encodes. Call end after the response.
func (l *Encoder) Represent(ctx context.Context, wanted *Representation) (with context.Context, end func()) {
	outer := l.requestOf(ctx)
	with, r := l.begin(ctx)
	if outer != nil {
		r.compressed = outer.compressed
	}
	r.wanted, r.once, wanted.ctx = wanted, true, with
	return with, r.end
}

// errRepresentation is why a representation is left to the server.
var errRepresentation = errors.New("the representation is left to the server")

// representationWriter writes a list in a representation, and records that with the
// first write.
type representationWriter struct {
	wanted *Representation
	to     io.Writer
}

// Write implements io.Writer.
func (w representationWriter) Write(p []byte) (int, error) {
	w.wanted.outcome.Store(written)
	return w.to.Write(p)
}

// represent writes a list in the representation that the client asks for. If that is
// not possible, represent writes nothing and refuses; the request is then made again.
func (e *listEncoder) represent(noted *listing, list runtime.Object, w io.Writer) error {
	wanted := noted.wanted
	made := &representer{listEncoder: e, wanted: wanted, noted: noted, list: list}
	write, err := made.metadata, error(nil)
	if wanted.Table != nil {
		write, err = made.table()
	}
	if err == nil {
		err = write(representationWriter{wanted, w})
	}
	if err != nil && !wanted.Written() {
		wanted.outcome.Store(refused)
		return nil
	}
	return err
}

// representer writes one list in a representation.
type representer struct {
	*listEncoder
	wanted *Representation
	noted  *listing
	list   runtime.Object
}

// isLong reports whether a list that a cache has filled is long.
func (m *representer) isLong() bool { return len(m.noted.elements) > batchItems }

// stock encodes with the server's own encoder.
func (m *representer) stock(object runtime.Object, w io.Writer) error {
	allocating, ok := m.wanted.Encoder.(runtime.EncoderWithAllocator)
	if !ok {
		return m.wanted.Encoder.Encode(object, w)
	}
	memory := runtime.AllocatorPool.Get().(*runtime.Allocator)
	defer runtime.AllocatorPool.Put(memory)
	return allocating.EncodeWithAllocator(object, w, memory)
}

// metadata writes the metadata of the list's objects.
func (m *representer) metadata(w io.Writer) error {
	own, ok := m.list.(metav1.ListInterface)
	if !ok {
		return errRepresentation
	}
	if items, ok := m.items(); ok {
		if a := m.metadataFormat().assemble(m.noted, metadataItems(m.stock, own, m.noted.elements)); a != nil {
			m.noted.release(items)
			return a.write(w)
		}
	}
	if m.isLong() {
		return errRepresentation // whose memory the server must have
	}
	list := emptyMetadata(own)
	err := meta.EachListItem(m.list, func(object runtime.Object) error {
		item, err := metadataOf(object)
		if err == nil {
			list.Items = append(list.Items, *item)
		}
		return err
	})
	if err != nil {
		return err
	}
	return m.stock(list, w)
}

// items returns the items of the list; false unless a cache has put them in.
func (m *representer) items() (reflect.Value, bool) {
	items, ok := itemsOf(m.list)
	if !ok || items.Len() < minItems || !unchanged(items, m.noted.elements) {
		return reflect.Value{}, false
	}
	return items, true
}

// metadataFormat returns the format of the metadata of objects. All served
// versions have the same, and rows of Tables have it too.
func (m *representer) metadataFormat() *format {
	return m.serializer.format(formatID{encoder: "metadata:" + m.wanted.Encoder.Identifier(), list: reflect.TypeOf(m.list)}, m.syntax)
}

// metadataItems returns the encoder of the metadata of a list's objects, which are those of
// elements.
func metadataItems(stock encode, own metav1.ListInterface, elements []*watchcache.Element) *templateEncoder {
	return &templateEncoder{stock: stock, subset: func(positions []int) (runtime.Object, error) {
		list := emptyMetadata(own)
		list.Items = make([]metav1.PartialObjectMetadata, 0, len(positions))
		for _, at := range positions {
			item, err := metadataOf(elements[at].Object)
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, *item)
		}
		return list, nil
	}}
}

// emptyMetadata returns a list of metadata without items, with the list's own metadata.
func emptyMetadata(own metav1.ListInterface) *metav1.PartialObjectMetadataList {
	return &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{
		ResourceVersion: own.GetResourceVersion(), Continue: own.GetContinue(), RemainingItemCount: own.GetRemainingItemCount(),
	}}
}

var metadataKind = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")

func metadataOf(object any) (*metav1.PartialObjectMetadata, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	partial := meta.AsPartialObjectMetadata(m)
	partial.SetGroupVersionKind(metadataKind)
	return partial, nil
}
