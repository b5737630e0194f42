// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	endpoints "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// The serializer of custom resources is private to k8s.io/apiextensions-apiserver, so
// no encoder of this package is given their lists. Instead the cache leaves the items
// out, the server writes the list without them, and a handler around the server adds
// the items from kept bytes (customresponse.go).

// CustomList is a request for a list of custom resources that a handler of
// Listings.CustomResources may answer.
type CustomList struct {
	Resource schema.GroupVersionResource
	// Gzip: the API server, of itself, compresses a long response.
	Gzip bool
	// Metadata has a Version if the client asks for a PartialObjectMetadataList. Without
	// one, the response is the list itself in compact JSON.
	Metadata CustomMetadata
}

// CustomMetadata is the representation of a list of custom resources as metadata.
type CustomMetadata struct {
	// Version of meta.k8s.io is v1 or v1beta1.
	Version string
	// Encoder is the API server's own, of compact JSON or protobuf.
	Encoder  runtime.Encoder
	Protobuf bool
}

// customKind names a representation of the lists of one cache.
type customKind struct {
	version  string // of the metadata; empty for the list itself
	protobuf bool
}

func (c CustomList) kind() customKind {
	if c.Metadata.Version == "" {
		return customKind{}
	}
	return customKind{c.Metadata.Version, c.Metadata.Protobuf}
}

// customRequest is one request on its way from the handler to the cache. The
// goroutine that serves the request fills the list.
type customRequest struct {
	CustomList
	listings *Listings
	user     string // everything that a filter may know of the user

	mu struct {
		sync.Mutex
		filled bool // a list was filled for the request
		made   *customResponse
	}
}

// customResponse holds the parts from which a response is assembled.
type customResponse struct {
	list *assembly
	// held: the server writes the list without items, which must equal empty.
	held  bool
	empty []byte
	proof *customProof
}

type customKey struct{}

// customStore holds what is known about the lists of custom resources of one cache.
type customStore struct {
	formats sync.Map // of customKind to *format
	proofs  sync.Map // of customKind to *customProof
}

// customProof records for which users the server has written a list as it is assembled
// here. refused: the server has once written another list.
type customProof struct {
	kind    customKind
	users   sync.Map
	count   atomic.Int64
	refused atomic.Bool
}

// maxUsers bounds the users of one proof.
const maxUsers = 1 << 12

func (p *customProof) has(user string) bool {
	_, ok := p.users.Load(user)
	return ok
}

func (p *customProof) add(user string) {
	if p.count.Add(1) > maxUsers {
		p.users.Clear()
		p.count.Store(1)
	}
	p.users.Store(user, struct{}{})
}

// refuse leaves lists of this kind to the server for good.
func (p *customProof) refuse(why string) {
	if p.refused.CompareAndSwap(false, true) {
		klog.ErrorS(nil, "Kept bytes can't be used for the lists of one custom resource; each is encoded again for every request. Please report it with the definition of the resource",
			"reason", why, "representation", fmt.Sprintf("%+v", p.kind))
	}
}

// userOf returns a key of everything that a filter can see of a request's user.
func userOf(ctx context.Context) string {
	u, ok := endpoints.UserFrom(ctx)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%q %q %q %q", u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra())
}

func (s *customStore) proof(kind customKind) *customProof {
	if p, ok := s.proofs.Load(kind); ok {
		return p.(*customProof)
	}
	p, _ := s.proofs.LoadOrStore(kind, &customProof{kind: kind})
	return p.(*customProof)
}

func (s *customStore) format(kind customKind) *format {
	if f, ok := s.formats.Load(kind); ok {
		return f.(*format)
	}
	name := formatID{encoder: runtime.Identifier(fmt.Sprintf("custom:%+v", kind)), list: reflect.TypeFor[unstructured.UnstructuredList]()}
	made := &format{id: name, syntax: jsonSyntax, seed: newFormatSeed(name)}
	if kind.protobuf {
		made.syntax = protobufSyntax
	}
	f, _ := s.formats.LoadOrStore(kind, made)
	return f.(*format)
}

// CustomFill is a list of custom resources that a cache is about to fill.
type CustomFill struct {
	request *customRequest
	list    *unstructured.UnstructuredList
	store   *Store
	proof   *customProof
	// Omit: the list is filled without items, and Complete accounts for them.
	Omit bool
}

// Custom returns how to fill a list that a cache of the resource reads for a request
// of CustomResources; nil for any other list.
func (l *Listings) Custom(ctx context.Context, resource schema.GroupResource, list runtime.Object, store *Store) *CustomFill {
	if l == nil || !l.custom.Load() || store.share.None() {
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
	proof := store.custom.proof(r.kind())
	if proof.refused.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.filled {
		return nil
	}
	r.mu.filled = true
	return &CustomFill{request: r, list: custom, store: store, proof: proof, Omit: proof.has(r.user)}
}

// Complete assembles the response, once the list has everything but its items. If
// Complete returns false, the cache must fill in the items.
func (f *CustomFill) Complete(elements []*watchcache.Element) bool {
	if len(elements) < minItems {
		return false
	}
	items := f.items(elements)
	noted := &listing{elements: elements, store: f.store, compressed: f.request.Gzip}
	t := &templateEncoder{stock: items.encode, subset: items.subset, later: f.Omit}
	whole := func(w io.Writer) error {
		all := make([]int, len(elements))
		for i := range all {
			all[i] = i
		}
		list, err := items.subset(all)
		if err != nil {
			return err
		}
		return items.encode(list, w)
	}
	made := &customResponse{held: f.Omit, proof: f.proof}
	if made.list = f.store.custom.format(f.proof.kind).assemble(noted, t, whole); made.list == nil {
		return false
	}
	if made.held {
		var err error
		if made.empty, err = encodedBy(items.encode, items.none()); err != nil {
			return false
		}
	}
	f.request.mu.Lock()
	defer f.request.mu.Unlock()
	f.request.mu.made = made
	return true
}

// response returns the response that a cache has assembled; nil if there is none.
func (r *customRequest) response() *customResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.made
}

// customJSON writes lists and objects as the server does for custom resources.
var customJSON = json.NewSerializerWithOptions(json.DefaultMetaFactory, nil, nil, json.SerializerOptions{StreamingCollectionsEncoding: true})

// customItems encodes the items of a list, or their metadata.
type customItems struct {
	encode encode
	// subset returns the list with the items at the given positions.
	subset func(positions []int) (runtime.Object, error)
	// none returns the list as the server represents it without items.
	none func() runtime.Object
}

// chosen applies make to the objects at the given positions.
func chosen[T any](elements []*watchcache.Element, positions []int, make func(*unstructured.Unstructured) (T, error)) ([]T, error) {
	items := []T{}
	for _, at := range positions {
		o, ok := elements[at].Object.(*unstructured.Unstructured)
		if !ok {
			return nil, errFrame
		}
		item, err := make(o)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

func (f *CustomFill) items(elements []*watchcache.Element) *customItems {
	if f.request.Metadata.Version == "" {
		list := func(items []unstructured.Unstructured) runtime.Object {
			return &unstructured.UnstructuredList{Object: f.list.Object, Items: items}
		}
		return &customItems{
			encode: customJSON.Encode,
			subset: func(positions []int) (runtime.Object, error) {
				items, err := chosen(elements, positions, func(o *unstructured.Unstructured) (unstructured.Unstructured, error) { return *o, nil })
				return list(items), err
			},
			none: func() runtime.Object { return list([]unstructured.Unstructured{}) },
		}
	}
	kind := metadataKind
	kind.Version = f.proof.kind.version
	return &customItems{
		encode: f.request.Metadata.Encoder.Encode,
		subset: func(positions []int) (runtime.Object, error) {
			items, err := chosen(elements, positions, func(o *unstructured.Unstructured) (metav1.PartialObjectMetadata, error) {
				item, err := metadataOf(o)
				if err != nil {
					return metav1.PartialObjectMetadata{}, err
				}
				item.SetGroupVersionKind(kind)
				return *item, nil
			})
			return f.metadata(items), err
		},
		none: func() runtime.Object { return f.metadata(nil) },
	}
}

// metadata returns the list of metadata with these items, in the version that the
// client asks for.
func (f *CustomFill) metadata(items []metav1.PartialObjectMetadata) runtime.Object {
	own := metav1.ListMeta{
		ResourceVersion: f.list.GetResourceVersion(), Continue: f.list.GetContinue(), RemainingItemCount: f.list.GetRemainingItemCount(),
	}
	if f.proof.kind.version == metav1beta1.SchemeGroupVersion.Version {
		return &metav1beta1.PartialObjectMetadataList{ListMeta: own, Items: items}
	}
	return &metav1.PartialObjectMetadataList{ListMeta: own, Items: items}
}
