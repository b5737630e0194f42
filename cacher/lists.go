// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/cacher/internal/wire"
)

// Lists connects caches with the serializers of an API server, so that lists are
// encoded once and not for every request: Config.Lists of the caches, and
// Lists.Serializer in place of the serializer of the API group. A Lists may serve
// any number of caches and groups; server.Install and server.InstallAPIGroup use
// one for all of a server. The zero value is ready for use.
type Lists struct{ listings wire.Listings }

// Serializer returns a serializer that makes the same bytes as stock. For lists
// in JSON and protobuf that were filled by caches with this Lists, it takes them
// from what was kept when earlier lists were encoded; see Config.EncodingBytes.
//
// Nobody may have changed anything below the top level of the items, which is
// shared with the cache in any case. Lists whose items were changed at the top
// level, by a registry's Decorator for example, are encoded by stock, as are all
// other objects and formats.
func (l *Lists) Serializer(stock runtime.NegotiatedSerializer) runtime.NegotiatedSerializer {
	return l.listings.Serializer(stock)
}

// Compress returns a handler that answers requests as next does, and lists that
// next would compress with gzip from what is kept in compressed form. accepts
// reports whether a request is for a list, and a long answer to it is to be
// compressed: for others, nothing is done. Put Compress around the handler of the
// API, within everything that looks at the answer; server.Install does.
//
// Clients read the same bytes from an answer, and the same header. The metrics of
// the server count compressed bytes, as ever.
func (l *Lists) Compress(next http.Handler, accepts func(*http.Request) bool) http.Handler {
	return l.listings.Compress(next, accepts)
}

// Answerable is a request for a list of custom resources that Lists.Answer may answer.
type Answerable struct {
	// Resource is what the request lists.
	Resource schema.GroupVersionResource
	// Gzip: the API server, of itself, compresses a long answer with gzip.
	Gzip bool
	// Form is how the list is wanted, nil if as the list itself in compact JSON.
	Form *AnswerForm
}

// AnswerForm is a form in which a client wants a list of custom resources, of
// meta.k8s.io in the version v1 or v1beta1.
type AnswerForm struct {
	Version string
	// Encoder is the API server's own for the form: of compact JSON or, for
	// metadata, of protobuf.
	Encoder  runtime.Encoder
	Protobuf bool
	// Table: the list is wanted as a Table in JSON, and otherwise as a
	// PartialObjectMetadataList. Objects: the rows have whole objects, and not their
	// metadata.
	Table, Objects bool
}

// Answer returns a handler that answers requests as next does, and lists of custom
// resources from what was kept when earlier lists were encoded: lists that are
// filled, as an unstructured.UnstructuredList, by caches with this Lists.
// answerable describes such a request; it returns false for requests that next would
// not answer with a list in the format that it says, and for those whose answer an
// audit log has. Put Answer around the handler of the API, within everything that
// looks at the answer; server.CustomResources does.
//
// The API's handler is given a list without its items, if the list read from the
// cache is the one that it writes: Answer adds them. The handler itself counts an
// answer without items, in the metric apiserver_response_sizes. For a Table the
// handler is given all items, and writes a Table without objects: once it has read
// the list, the query of its request has includeObject=None, and no Accept-Encoding.
func (l *Lists) Answer(next http.Handler, answerable func(*http.Request) (Answerable, bool)) http.Handler {
	return l.listings.Answer(next, func(r *http.Request) (wire.Asked, bool) {
		asked, ok := answerable(r)
		return wire.Asked{Resource: asked.Resource, Gzip: asked.Gzip, Form: (*wire.AskedForm)(asked.Form)}, ok
	})
}

// SwitchOnAnswers makes the handlers of Answer do something. Before, they pass
// requests on.
func (l *Lists) SwitchOnAnswers() { l.listings.SwitchOnAnswers() }

// answering returns how a list is to be filled for a handler of Answer, nil if as
// ever.
func (l *Lists) answering(ctx context.Context, e *engine, list runtime.Object) *wire.Fill {
	if l == nil {
		return nil
	}
	return l.listings.Answering(ctx, e.config.GroupResource, list, e.lists)
}

// Stream returns a handler that answers requests as next does, and watches so that
// initial events come to the connection many at once. asks reports whether a request
// is a watch, and whether next would compress the answer: such a watch is compressed
// here, and an event once for all watches that are sent it. Other requests are left
// alone. Put Stream around the handler of the API, within everything that looks at
// the answer; server.Install does.
//
// Clients read the same bytes, and the same header, which says that the body is
// compressed exactly if next would say so. A compressed body is one member of gzip.
func (l *Lists) Stream(next http.Handler, asks func(*http.Request) (watch, compressed bool)) http.Handler {
	return l.listings.Stream(next, asks)
}

// events returns where compressed events are shared, nil on nil.
func (l *Lists) events() *wire.Events {
	if l == nil {
		return nil
	}
	return l.listings.Events()
}

// note records what a list was filled with. note does nothing on nil, and
// before Serializer was called.
func (l *Lists) note(ctx context.Context, list runtime.Object, p *page, store *wire.Store) {
	if l != nil {
		l.listings.Note(ctx, list, p.elements, store)
	}
}

// Form is how a client wants a list, if not as the list itself.
type Form struct {
	// Serializer is that of the API server for Tables and metadata,
	// apihelpers.GetMetaInternalVersionCodecs().
	Serializer runtime.NegotiatedSerializer
	// Table makes a Table of the list; the rows get the metadata of their objects.
	// Without it, the list is wanted as a PartialObjectMetadataList. Both are of
	// meta.k8s.io/v1.
	Table func(ctx context.Context, list runtime.Object) (*metav1.Table, error)
}

// FormOutcome is what has become of a form.
type FormOutcome int

const (
	// FormUnused: no encoder of this Lists was given a list that a cache has filled
	// with the context. If anything was written, it is not in the form.
	FormUnused FormOutcome = iota
	// FormWritten: the list was written in the form, or begun, from kept bytes or as
	// the server's own encoder does.
	FormWritten
	// FormRefused: the encoder could not write the list in the form, and has written
	// nothing.
	FormRefused
)

// Want returns a context for a LIST whose answer is wanted in a form, and a
// function that says what has become of it so far. An encoder of a Serializer of
// this Lists that is given the list which a cache has filled with the context
// writes it in the form, in JSON or protobuf. Call end when the request was
// answered. server.InstallAPIGroup does all of this.
func (l *Lists) Want(ctx context.Context, form Form) (with context.Context, outcome func() FormOutcome, end func()) {
	f := &wire.Form{Serializer: form.Serializer, Table: form.Table}
	return wire.WithForm(ctx, f), func() FormOutcome {
		switch {
		case f.Written():
			return FormWritten
		case f.Refused():
			return FormRefused
		}
		return FormUnused
	}, func() { l.listings.End(f) }
}

// want records that a list was read for a context that may say in which form it
// is wanted. want does nothing on nil.
func (l *Lists) want(ctx context.Context, list runtime.Object) {
	if l != nil {
		l.listings.Want(ctx, list)
	}
}
