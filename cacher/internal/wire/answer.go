// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"io"
	"reflect"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Answer connects a request for a list of custom resources with the cache that
// fills the list. The serializer of such lists is private to
// k8s.io/apiextensions-apiserver, so that no encoder of ours is given them.
// Instead the cache leaves the items out, the server writes the list without
// them, and the handler around the server puts the items, as kept bytes, into
// the answer (answering.go).
//
// The handler is for one request, whose goroutine alone fills the list.
type Answer struct {
	resource schema.GroupVersionResource
	// gzip: the server, of itself, compresses a long answer.
	gzip bool

	mu struct {
		sync.Mutex
		// taken: a list was filled for the request.
		taken bool
		// list is the whole answer, nil if the server has to encode it. omitted: the
		// server is given the list without its items.
		list    *assembly
		omitted bool
		store   *Store
	}
}

type answerKey struct{}

// answers is what was learnt about the lists of one cache that handlers answer.
type answers struct {
	format *format
	// proven: the server has once written a whole list as it is put together here.
	// refused: it has written another one.
	proven, refused atomic.Bool
}

// customJSON writes lists and objects as the server does for custom resources.
var customJSON = json.NewSerializerWithOptions(json.DefaultMetaFactory, nil, nil, json.SerializerOptions{StreamingCollectionsEncoding: true})

func newAnswers() answers {
	id := formatID{encoder: "answer:" + customJSON.Identifier(), list: reflect.TypeFor[unstructured.UnstructuredList]()}
	return answers{format: &format{id: id, syntax: jsonSyntax, seed: newFormatSeed(id)}}
}

// Fill is what a cache does to answer a request with a list.
type Fill struct {
	answer *Answer
	list   *unstructured.UnstructuredList
	store  *Store
	// Omit: the list is filled without items, which Complete accounts for.
	Omit bool
}

// Answering returns how a list is to be filled that a cache of the resource reads
// with the context, nil if as ever.
func (l *Listings) Answering(ctx context.Context, resource schema.GroupResource, list runtime.Object, store *Store) *Fill {
	if l == nil || !l.answering.Load() || store.share.None() || store.answers.refused.Load() {
		return nil
	}
	a, ok := ctx.Value(answerKey{}).(*Answer)
	if !ok || a.resource.GroupResource() != resource {
		return nil
	}
	custom, ok := list.(*unstructured.UnstructuredList)
	if !ok || custom.GroupVersionKind().GroupVersion() != a.resource.GroupVersion() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.taken {
		return nil
	}
	a.mu.taken = true
	return &Fill{answer: a, list: custom, store: store, Omit: store.answers.proven.Load()}
}

// Complete puts the answer together of the elements, once the list has all but its
// items. If Complete returns false, the cache has to fill in the items after all.
func (f *Fill) Complete(elements []*watchcache.Element) bool {
	if len(elements) < minItems {
		return false
	}
	l := &learner{stock: customJSON.Encode, subset: func(positions []int) (runtime.Object, error) {
		some := &unstructured.UnstructuredList{Object: f.list.Object, Items: make([]unstructured.Unstructured, 0, len(positions))}
		for _, at := range positions {
			object, ok := elements[at].Object.(*unstructured.Unstructured)
			if !ok {
				return nil, errFrame
			}
			some.Items = append(some.Items, *object)
		}
		return some, nil
	}}
	whole := func(w io.Writer) error {
		all := make([]int, len(elements))
		for i := range all {
			all[i] = i
		}
		list, err := l.subset(all)
		if err != nil {
			return err
		}
		return customJSON.Encode(list, w)
	}
	made := f.store.answers.format.assemble(&listing{elements: elements, store: f.store, compressed: f.answer.gzip}, l, whole)
	if made == nil {
		return false
	}
	a := f.answer
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.list, a.mu.omitted, a.mu.store = made, f.Omit, f.store
	return true
}

// outcome returns the list that a cache has put together for the request, nil if
// there is none, and whether the server was given it without items.
func (a *Answer) outcome() (list *assembly, omitted bool, store *Store) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.list, a.mu.omitted, a.mu.store
}
