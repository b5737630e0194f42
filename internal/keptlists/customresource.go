// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	endpoints "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/lru"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// The serializer of custom resources is private to k8s.io/apiextensions-apiserver, so we can't wrap
// it. Instead, the cache omits the items, the server writes an empty list, and a handler around it
// inserts the items from kept bytes (customresponse.go).

// CustomList is a request for a list of custom resources.
type CustomList struct {
	Resource schema.GroupVersionResource
	// Gzip is true if the API server would compress a long response.
	Gzip bool
	// Metadata is the API server's encoder, of compact JSON or protobuf, for a v1
	// PartialObjectMetadataList. If nil, the response is the list itself in compact JSON.
	Metadata runtime.Encoder
	Protobuf bool
}

// customRequest carries a request from the handler to the cache, on one goroutine.
type customRequest struct {
	CustomList
	listings *Encoder
	user     string      // identifies all that a filter can see of the user
	filled   atomic.Bool // a list was filled for the request
	filling  *CustomFill // this list
	made     atomic.Pointer[CustomFill]
}

type customKey struct{}

type customFormat struct {
	*format
	// users are those for whom a list assembled here matched the server's.
	users *lru.Cache
}

const maxUsers = 1 << 12

// customFormat returns the format of a list. A cache has only one version of the resource.
func (s *Store) customFormat(l CustomList) *customFormat {
	id, syntax := formatID{encoder: "custom:list", list: reflect.TypeFor[unstructured.UnstructuredList]()}, jsonSyntax
	switch {
	case l.Protobuf:
		id.encoder, syntax = "custom:metadata,protobuf", protobufSyntax
	case l.Metadata != nil:
		id.encoder = "custom:metadata"
	}
	return loaded(&s.formats, id, func() *customFormat { return &customFormat{newFormat(id, syntax), lru.New(maxUsers)} })
}

// userOf returns a key of all that a filter can see of the request's user.
func userOf(ctx context.Context) string {
	u, ok := endpoints.UserFrom(ctx)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%q %q %q %q", u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra())
}

// CustomFill is a list of custom resources that a cache is about to fill.
type CustomFill struct {
	request *customRequest
	list    *unstructured.UnstructuredList
	store   *Store
	format  *customFormat
	// Omit is true if the cache must omit the items, which Complete provides.
	Omit bool
	// whole is the list. With Omit, the server's list without items must equal empty.
	whole *assembly
	empty []byte
}

// Custom returns the CustomFill if list, filled by a cache of the resource, answers a request of
// CustomResources, otherwise nil.
func (l *Encoder) Custom(ctx context.Context, resource schema.GroupResource, list runtime.Object, store *Store) *CustomFill {
	if !l.custom.Load() || store.off() {
		return nil
	}
	r, ok := ctx.Value(customKey{}).(*customRequest)
	if !ok || r.listings != l || r.Resource.GroupResource() != resource {
		return nil
	}
	custom, ok := list.(*unstructured.UnstructuredList)
	if !ok || custom.GroupVersionKind().GroupVersion() != r.Resource.GroupVersion() {
		return nil
	}
	f := store.customFormat(r.CustomList)
	if f.refused.Load() || !r.filled.CompareAndSwap(false, true) {
		return nil
	}
	_, proven := f.users.Get(r.user)
	r.filling = &CustomFill{request: r, list: custom, store: store, format: f, Omit: proven}
	return r.filling
}

func filling(ctx context.Context, list runtime.Object) *CustomFill {
	r, ok := ctx.Value(customKey{}).(*customRequest)
	if !ok || r.filling == nil || runtime.Object(r.filling.list) != list {
		return nil
	}
	return r.filling
}

// Complete assembles the response once the list lacks only items. If it returns false, the cache
// must add them.
func (f *CustomFill) Complete(elements []*watchcache.Element) bool {
	if len(elements) < minItems {
		return false
	}
	// Copy, because the server may convert the list before all items are encoded.
	own := (&unstructured.UnstructuredList{Object: f.list.Object}).DeepCopy()
	t, none := customItems(own, elements), runtime.Object(own)
	if f.request.Metadata != nil {
		t, none = metadataItems(f.request.Metadata.Encode, own, elements), emptyMetadata(own)
	}
	f.whole = f.format.assemble(&listing{elements: elements, store: f.store, compressed: f.request.Gzip}, t)
	if f.whole == nil {
		return false
	}
	if f.Omit {
		var b bytes.Buffer
		if t.stock(none, &b) != nil {
			return false
		}
		f.empty = b.Bytes()
	}
	f.request.made.Store(f)
	return true
}

// customJSON encodes as the server does for custom resources.
var customJSON = json.NewSerializerWithOptions(json.DefaultMetaFactory, nil, nil, json.SerializerOptions{StreamingCollectionsEncoding: true})

func customItems(own *unstructured.UnstructuredList, elements []*watchcache.Element) *templateEncoder {
	return &templateEncoder{stock: customJSON.Encode, subset: func(positions []int) (runtime.Object, error) {
		list := &unstructured.UnstructuredList{Object: own.Object, Items: make([]unstructured.Unstructured, 0, len(positions))}
		for _, at := range positions {
			o, ok := elements[at].Object.(*unstructured.Unstructured)
			if !ok {
				return nil, errFrame
			}
			list.Items = append(list.Items, *o)
		}
		return list, nil
	}}
}
