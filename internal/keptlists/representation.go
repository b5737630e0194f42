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

	"github.com/kube-watchcache/watchcache/internal/minors"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// Representation is a list requested as metadata or as a Table with metadata, of meta.k8s.io/v1.
type Representation struct {
	// Encoder is the API server's encoder for the response's media type.
	Encoder runtime.Encoder
	// Table converts a list to a Table whose rows refer to the list's items. If nil, the client
	// requests a PartialObjectMetadataList.
	Table func(ctx context.Context, list runtime.Object) (*metav1.Table, error)

	ctx     context.Context // of the request
	outcome atomic.Int32
}

const (
	unused  int32 = iota
	written       // an encoder began to write the representation
	refused       // an encoder received the list and wrote nothing
)

// Unused reports whether no encoder received a list filled for the request.
func (r *Representation) Unused() bool { return r.outcome.Load() == unused }

// Written reports whether an encoder began to write the representation.
func (r *Representation) Written() bool { return r.outcome.Load() == written }

// Represent returns a context for a LIST in a representation, encoded by this Encoder only. Call
// end after the response.
func (l *Encoder) Represent(ctx context.Context, wanted *Representation) (with context.Context, end func()) {
	outer := l.requestOf(ctx)
	with, r := l.begin(ctx)
	if outer != nil {
		r.compressed = outer.compressed
	}
	r.wanted, r.once, wanted.ctx = wanted, true, with
	return with, r.end
}

// errRepresentation is returned if the server must respond.
var errRepresentation = errors.New("the representation is left to the server")

type representationWriter struct {
	wanted *Representation
	to     io.Writer
}

// Write implements io.Writer.
func (w representationWriter) Write(p []byte) (int, error) {
	w.wanted.outcome.Store(written)
	return w.to.Write(p)
}

// represent writes a list in the requested representation, or nothing if it can't, so that the
// request is repeated.
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

type representer struct {
	*listEncoder
	wanted *Representation
	noted  *listing
	list   runtime.Object
}

func (m *representer) isLong() bool { return len(m.noted.elements) > batchItems }

func (m *representer) stock(object runtime.Object, w io.Writer) error {
	allocating, ok := m.wanted.Encoder.(runtime.EncoderWithAllocator)
	if !ok {
		return m.wanted.Encoder.Encode(object, w)
	}
	memory := runtime.AllocatorPool.Get().(*runtime.Allocator)
	defer runtime.AllocatorPool.Put(memory)
	return allocating.EncodeWithAllocator(object, w, memory)
}

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
		return errRepresentation // the server accounts for its memory
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

// items returns the items of the list, and false unless they are the cache's, unchanged.
func (m *representer) items() (reflect.Value, bool) {
	items, ok := itemsOf(m.list)
	if !ok || items.Len() < minItems || !unchanged(items, m.noted.elements) {
		return reflect.Value{}, false
	}
	return items, true
}

// metadataFormat returns the format of objects' metadata, shared by all served versions and rows of
// Tables.
func (m *representer) metadataFormat() *format {
	return m.serializer.format(formatID{encoder: "metadata:" + m.wanted.Encoder.Identifier(), list: reflect.TypeOf(m.list)}, m.syntax)
}

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

func emptyMetadata(own metav1.ListInterface) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{
		ResourceVersion: own.GetResourceVersion(), Continue: own.GetContinue(), RemainingItemCount: own.GetRemainingItemCount(),
	}}
	minors.SetShardInfo(list, own)
	return list
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
