// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/listcache"
)

// ListEncodings connects caches with the serializers of an API server, so that lists
// are encoded once and not for every request: Config.Lists of the caches, and
// ListEncodings.Serializer in place of the serializer of the API group. A
// ListEncodings may serve any number of caches and groups. The zero value is ready for
// use. server.Install, InstallAPIGroup and CustomResources call all of its methods.
type ListEncodings struct{ listings listcache.Listings }

// Serializer returns a serializer that makes the same bytes as stock. Lists in JSON and
// protobuf that caches with these ListEncodings have filled, for a request of Serve,
// come from bytes of earlier lists; see Config.EncodingBytes.
//
// Nobody may have changed anything below the top level of the items, which is
// shared with the cache in any case. stock encodes lists whose items were changed at
// the top level, by a registry's Decorator for example, and all other objects and
// formats.
func (l *ListEncodings) Serializer(stock runtime.NegotiatedSerializer) runtime.NegotiatedSerializer {
	return l.listings.Serializer(stock)
}

// Serve returns a handler that answers requests as next does, and LISTs from kept
// bytes. asks reports whether a request is a LIST, and whether next would compress a
// long response to it with gzip: such a list is sent from bytes that are kept
// compressed. Put Serve around the handler of the API, within everything that looks at
// the response.
//
// Clients read the same bytes and the same header. The metrics of the server count
// compressed bytes, as ever.
func (l *ListEncodings) Serve(next http.Handler, asks func(*http.Request) (list, compressed bool)) http.Handler {
	return l.listings.Serve(next, asks)
}

// Begin returns a context for a LIST outside of Serve. A list that a cache fills for this
// context is encoded from kept bytes. Call end after the list was encoded.
func (l *ListEncodings) Begin(ctx context.Context) (with context.Context, end func()) {
	return l.listings.Begin(ctx)
}

// Representation is how a client asks for a list, if not as the list itself.
type Representation = listcache.Representation

// Represent returns a context for a LIST that is wanted in a representation: an
// encoder of Serializer writes the list that a cache fills for this context in JSON or
// protobuf. Call end after the response.
func (l *ListEncodings) Represent(ctx context.Context, wanted *Representation) (with context.Context, end func()) {
	return l.listings.Represent(ctx, wanted)
}

// CustomList is a request for a list of custom resources that the handler of
// CustomResources may answer.
type CustomList = listcache.CustomList

// CustomResources returns a handler that answers requests as next does, and lists of
// custom resources, which caches with these ListEncodings fill as an
// unstructured.UnstructuredList, from kept bytes. asks describes such a request. It
// must return false for requests that next would answer in another format, and for
// those whose response an audit log has. Put the handler around that of the API,
// within everything that looks at the response.
//
// The API's handler is given a list without its items, which are added to the list
// that it writes. The handler itself counts a response without items, in the metric
// apiserver_response_sizes.
//
// No handler may filter or change the items of these caches' lists: next must be the
// server of k8s.io/apiextensions-apiserver.
func (l *ListEncodings) CustomResources(next http.Handler, asks func(*http.Request) (CustomList, bool)) http.Handler {
	return l.listings.CustomResources(next, asks)
}

// EnableCustomResources makes the handlers of CustomResources do something. Before,
// they pass requests on.
func (l *ListEncodings) EnableCustomResources() { l.listings.EnableCustomResources() }

// Stream returns a handler that answers requests as next does, and writes the initial
// events of watches many at once. asks reports whether a request is a watch, and
// whether next would compress the response: such a watch is compressed here, and each
// event once for all watches that receive it. Put Stream around the handler of the API,
// within everything that looks at the response.
//
// Clients read the same bytes and the same header. A compressed body is one member of
// gzip.
func (l *ListEncodings) Stream(next http.Handler, asks func(*http.Request) (watch, compressed bool)) http.Handler {
	return l.listings.Stream(next, asks)
}

// ShareInitialEvents returns a context for a watch whose reader changes none of its
// events and, within Stream, writes all of them to the response, in order. The initial
// events of such watches are a runtime.CacheableObject, and are encoded once for all of
// them. Other watches get private copies, since a registry's Decorator may read them.
func (l *ListEncodings) ShareInitialEvents(ctx context.Context) context.Context {
	return l.listings.ShareInitialEvents(ctx)
}

// ReturnsWatches reports whether open, which opens a watch of a registry, returns the
// watch of a Cacher as it is, without a Decorator or a filter around it. No watch is
// opened for it. other: open returned another watch, which was stopped. open is called
// once, and does not wait for the cache.
func (l *ListEncodings) ReturnsWatches(ctx context.Context, open func(context.Context) (watch.Interface, error)) (same, other bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	probe, ctx := listcache.NewProbe(ctx)
	w, err := open(ctx)
	if err != nil || w == nil {
		return false, false
	}
	if w == watch.Interface(probe) {
		return true, false
	}
	w.Stop()
	go func() { // a watch.Filter ends once its events are taken
		for range w.ResultChan() {
		}
	}()
	return false, true
}

// of returns the listings; nil of nil.
func (l *ListEncodings) of() *listcache.Listings {
	if l == nil {
		return nil
	}
	return &l.listings
}
