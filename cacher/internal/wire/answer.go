// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Asked is what a handler of Listings.Answer knows of a request.
type Asked struct {
	Resource schema.GroupVersionResource
	// Gzip: the server, of itself, compresses a long answer.
	Gzip bool
	// Form is how the list is wanted, nil if as the list itself, in compact JSON.
	Form *AskedForm
}

// AskedForm is a form of meta.k8s.io that a list of custom resources is wanted in.
type AskedForm struct {
	// Version is v1 or v1beta1.
	Version string
	// Encoder is the server's own for the form: of compact JSON or, for metadata, of
	// protobuf.
	Encoder  runtime.Encoder
	Protobuf bool
	// Table: the form is a Table in JSON, and not a PartialObjectMetadataList. Objects:
	// the rows have whole objects, and not their metadata.
	Table, Objects bool
}

// answerID names what lists of one cache are answered with.
type answerID struct {
	version                  string // of the form; empty for the list itself
	protobuf, table, objects bool
}

func (a Asked) id() answerID {
	if a.Form == nil {
		return answerID{objects: true}
	}
	return answerID{a.Form.Version, a.Form.Protobuf, a.Form.Table, a.Form.Objects}
}

// items names what chunks have the items: rows of Tables have those of lists, or of
// lists of metadata.
func (id answerID) items() answerID {
	if id.objects {
		return answerID{objects: true}
	}
	id.table = false
	return id
}

// Answer connects a request for a list of custom resources with the cache that
// fills the list. The serializer of such lists is private to
// k8s.io/apiextensions-apiserver, so that no encoder of ours is given them.
// Instead the cache leaves the items out, the server writes the list without
// them, and the handler around the server puts the items, as kept bytes, into
// the answer (answering.go). Of a Table the server makes the cells, which take the
// items, and the handler adds the objects (answertable.go).
//
// The handler is for one request, whose goroutine alone fills the list.
type Answer struct {
	Asked
	// request is the one that the server is given.
	request *http.Request

	mu struct {
		sync.Mutex
		// taken: a list was filled for the request.
		taken bool
		// made is what the answer is put together of, nil if the server has to write it.
		made *answered
	}
}

// answered is what an answer is put together of.
type answered struct {
	// list is the whole answer: the list or its metadata. Of a Table it has the objects
	// of the rows, and elements are what the rows are of.
	list     *assembly
	elements []*watchcache.Element
	table    bool
	// partly: the server writes only a part of the answer, which is the whole without
	// items if that is not a Table, and then equals want.
	partly bool
	want   []byte

	store  *Store
	judged *judgement
}

type answerKey struct{}

// answers is what was learnt about the lists of one cache that handlers answer.
type answers struct {
	formats    sync.Map // of answerID, of items, to *format
	judgements sync.Map // of answerID to *judgement
}

// judgement is what was learnt about one kind of answers.
type judgement struct {
	id answerID
	// proven: the server has once written a whole list as it is put together here.
	// refused: it has written another one.
	proven, refused atomic.Bool
}

func (a *answers) judgement(id answerID) *judgement {
	if j, ok := a.judgements.Load(id); ok {
		return j.(*judgement)
	}
	j, _ := a.judgements.LoadOrStore(id, &judgement{id: id})
	return j.(*judgement)
}

func (a *answers) format(id answerID) *format {
	if f, ok := a.formats.Load(id); ok {
		return f.(*format)
	}
	name := formatID{encoder: runtime.Identifier(fmt.Sprintf("answer:%+v", id)), list: reflect.TypeFor[unstructured.UnstructuredList]()}
	made := &format{id: name, syntax: jsonSyntax, seed: newFormatSeed(name)}
	if id.protobuf {
		made.syntax = protobufSyntax
	}
	f, _ := a.formats.LoadOrStore(id, made)
	return f.(*format)
}

// customJSON writes lists and objects as the server does for custom resources.
var customJSON = json.NewSerializerWithOptions(json.DefaultMetaFactory, nil, nil, json.SerializerOptions{StreamingCollectionsEncoding: true})

// Fill is what a cache does to answer a request with a list.
type Fill struct {
	answer *Answer
	list   *unstructured.UnstructuredList
	store  *Store
	judged *judgement
	proven bool
	// Omit: the list is filled without items, which Complete accounts for.
	Omit bool
}

// Answering returns how a list is to be filled that a cache of the resource reads
// with the context, nil if as ever.
func (l *Listings) Answering(ctx context.Context, resource schema.GroupResource, list runtime.Object, store *Store) *Fill {
	if l == nil || !l.answering.Load() || store.share.None() {
		return nil
	}
	a, ok := ctx.Value(answerKey{}).(*Answer)
	if !ok || a.Resource.GroupResource() != resource {
		return nil
	}
	custom, ok := list.(*unstructured.UnstructuredList)
	if !ok || custom.GroupVersionKind().GroupVersion() != a.Resource.GroupVersion() {
		return nil
	}
	judged := store.answers.judgement(a.id())
	if judged.refused.Load() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.taken {
		return nil
	}
	a.mu.taken = true
	proven := judged.proven.Load()
	return &Fill{answer: a, list: custom, store: store, judged: judged, proven: proven, Omit: proven && !judged.id.table}
}

// Complete puts the answer together of the elements, once the list has all but its
// items. If Complete returns false, the cache has to fill in the items after all.
func (f *Fill) Complete(elements []*watchcache.Element) bool {
	if len(elements) < minItems {
		return false
	}
	made := &answered{elements: elements, table: f.judged.id.table, partly: f.proven, store: f.store, judged: f.judged}
	from := f.itemsOf(elements)
	if made.table {
		made.list = f.objects(elements, from)
	} else {
		made.list = f.whole(elements, from)
	}
	if made.list == nil {
		return false
	}
	switch {
	case !made.partly:
	case made.table:
		f.answer.askForCells()
	default:
		var err error
		if made.want, err = from.empty(); err != nil {
			return false
		}
	}
	f.answer.mu.Lock()
	defer f.answer.mu.Unlock()
	f.answer.mu.made = made
	return true
}

// whole returns the list or its metadata.
func (f *Fill) whole(elements []*watchcache.Element, from *answerItems) *assembly {
	everything := func(w io.Writer) error {
		all := make([]int, len(elements))
		for i := range all {
			all[i] = i
		}
		list, err := from.subset(all)
		if err != nil {
			return err
		}
		return from.encode(list, w)
	}
	noted := &listing{elements: elements, store: f.store, compressed: f.answer.Gzip}
	return from.format.assemble(noted, &learner{stock: from.encode, subset: from.subset, later: f.proven}, everything)
}

// outcome returns what a cache has put together for the request, nil if nothing.
func (a *Answer) outcome() *answered {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.made
}
