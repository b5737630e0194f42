// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"context"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// minItems is the length of the shortest list answered from kept bytes. Learning the frame costs as
// much as encoding an item.
const minItems = 4

// Encoder connects the caches of an API server with its encoders, so that items are encoded once
// and not per request. It serves any number of caches and groups. The zero value does nothing until
// Serializer or EnableCustomResources is called.
type Encoder struct {
	on, custom atomic.Bool
	events     Events
	answers    answers
	mu         struct {
		sync.RWMutex
		// lists contains the last list filled for each active request.
		lists map[runtime.Object]*listing
	}
}

// listRequest is a client's LIST. Its context carries it to the cache that fills the list, which
// leads the encoder to it.
type listRequest struct {
	of *Encoder
	// compressed is the response if it may be compressed.
	compressed *compressedWriter
	// wanted is the requested representation, nil for the list itself.
	wanted *Representation
	once   bool           // only the response reads the list, not an audit log
	list   runtime.Object // the last filled list; guarded by Encoder.mu
}

// listing is the record of a filled list.
type listing struct {
	// elements are the list's items in the cache that filled it, or nil.
	elements   []*watchcache.Element
	store      *Store
	response   *compressedWriter
	wanted     *Representation
	compressed bool // the response may be compressed
	once       bool // the list is encoded only once
}

// release drops the list's items, otherwise most of the memory of a slow response. They are written
// from the elements.
func (l *listing) release(items reflect.Value) {
	if l.once {
		items.SetZero()
	}
}

type requestKey struct{}

// Begin returns a context for a LIST whose encoder may use kept bytes. Call end after encoding.
func (l *Encoder) Begin(ctx context.Context) (with context.Context, end func()) {
	with, r := l.begin(ctx)
	return with, r.end
}

func (l *Encoder) begin(ctx context.Context) (context.Context, *listRequest) {
	r := &listRequest{of: l}
	return context.WithValue(ctx, requestKey{}, r), r
}

func (l *Encoder) requestOf(ctx context.Context) *listRequest {
	if r, ok := ctx.Value(requestKey{}).(*listRequest); ok && r.of == l {
		return r
	}
	return nil
}

func (r *listRequest) end() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	delete(r.of.mu.lists, r.list)
	r.list = nil
}

func (r *listRequest) filled(list runtime.Object, made *listing) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.of.mu.lists == nil {
		r.of.mu.lists = map[runtime.Object]*listing{}
	}
	delete(r.of.mu.lists, r.list)
	r.list = list
	r.of.mu.lists[list] = made
}

// Serve returns a handler that serves lists and watches from kept bytes. classify returns the verb
// of such a request, list or watch, and whether next would compress a long response with gzip. Only
// handlers outside of this one may read the response.
func (l *Encoder) Serve(next http.Handler, classify func(*http.Request) (verb string, compressed bool)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		verb, compressed := "", false
		if l.on.Load() {
			verb, compressed = classify(r)
		}
		switch verb {
		case "list":
			l.serveList(next, w, r, compressed)
		case "watch":
			l.serveWatch(next, w, r, compressed)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (l *Encoder) serveList(next http.Handler, w http.ResponseWriter, r *http.Request, compressed bool) {
	ctx, request := l.begin(r.Context())
	defer request.end()
	log := audit.AuditContextFrom(ctx)
	request.once = log == nil || !log.Enabled() || log.GetEventLevel().Less(auditinternal.LevelRequestResponse)
	if !compressed {
		next.ServeHTTP(w, r.WithContext(ctx))
		return
	}
	request.compressed = &compressedWriter{ResponseWriter: w}
	next.ServeHTTP(responsewriter.WrapForHTTP1Or2(request.compressed), r.WithContext(ctx))
	request.compressed.sendHeader()
}

// Begin implements cacher.EncodingStore.
func (s *Store) Begin(ctx context.Context, list runtime.Object, elements []*watchcache.Element) (omit, admitted bool) {
	fill := s.encoder.Custom(ctx, s.resource, list, s)
	if fill != nil && fill.Omit {
		return true, true
	}
	return false, s.encoder.Admit(ctx, elements, s)
}

// Listed implements cacher.EncodingStore.
func (s *Store) Listed(ctx context.Context, list runtime.Object, elements []*watchcache.Element) bool {
	if fill := filling(ctx, list); fill != nil && !fill.Complete(elements) && fill.Omit {
		return false
	}
	s.encoder.Note(ctx, list, elements, s)
	s.encoder.NoteRead(ctx, list)
	return true
}

// Keep implements cacher.EncodingStore.
func (s *Store) Keep(event []byte, add func(int64)) (drop func()) {
	return s.encoder.events.Keep(event, add).Drop
}

// Note records that a cache with this store filled list with the elements' objects, which must not
// change afterwards.
func (l *Encoder) Note(ctx context.Context, list runtime.Object, elements []*watchcache.Element, store *Store) {
	if !l.on.Load() || len(elements) < minItems || store.off() {
		return
	}
	if r := l.requestOf(ctx); r != nil && isPointer(list) {
		r.filled(list, &listing{
			elements: elements, store: store, response: r.compressed, wanted: r.wanted, compressed: r.compressed != nil, once: r.once,
		})
	}
}

// NoteRead records a list, even without Note, so that the encoder can write it in another
// representation.
func (l *Encoder) NoteRead(ctx context.Context, list runtime.Object) {
	if !l.on.Load() {
		return
	}
	if r := l.requestOf(ctx); r != nil && r.wanted != nil && isPointer(list) && l.find(list) == nil {
		r.filled(list, &listing{wanted: r.wanted})
	}
}

func (l *Encoder) find(list runtime.Object) *listing {
	if !isPointer(list) {
		return nil
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.lists[list]
}

func isPointer(o runtime.Object) bool { return reflect.ValueOf(o).Kind() == reflect.Pointer }
