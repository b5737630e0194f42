// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"

	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// minItems is the length of the shortest list that is answered from kept bytes:
// learning the frame costs as much as encoding one item.
const minItems = 4

// Listings remembers what lists were filled with, for as long as the lists are
// in memory. The zero value remembers nothing until Serializer was called.
type Listings struct {
	on     atomic.Bool
	events Events
	// answering: handlers answer lists of custom resources.
	answering atomic.Bool
	mu        struct {
		sync.RWMutex
		of map[uintptr]*listing // by the address of the list
		// wanted are the lists that are wanted in a form, until the form is ended.
		wanted map[apiruntime.Object]*Form
	}
}

// listing is what a list was filled with. A listing is a hint: the items are
// compared with the elements before it is used, so that a list which has got
// the address of an earlier one is encoded right all the same.
type listing struct {
	address  uintptr
	elements []*watchcache.Element
	store    *Store
	response *response // nil if the list is not for one that may be compressed
	// compressed: the list is to be compressed, by whoever writes it.
	compressed bool
	// cleanup forgets the listing when the list is gone. Listings.mu guards it.
	cleanup runtime.Cleanup
}

// Note records that a list was filled with the objects of the elements, which
// nobody writes to from now on. Without a server that serves from kept bytes,
// Note does nothing. The store is that of the cache which has filled the list,
// for the request of the context.
func (l *Listings) Note(ctx context.Context, list apiruntime.Object, elements []*watchcache.Element, store *Store) {
	if l == nil || !l.on.Load() || len(elements) < minItems || store.share.None() {
		return
	}
	value := reflect.ValueOf(list)
	if value.Kind() != reflect.Pointer || value.IsNil() {
		return
	}
	noted := &listing{address: value.Pointer(), elements: elements, store: store, response: responseOf(ctx)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.of == nil {
		l.mu.of = map[uintptr]*listing{}
	}
	if earlier := l.mu.of[noted.address]; earlier != nil {
		earlier.cleanup.Stop() // a list that is filled again and again keeps one note
	}
	l.mu.of[noted.address] = noted
	noted.cleanup = runtime.AddCleanup((*byte)(value.UnsafePointer()), l.forget, noted)
}

// forget drops the note of a list that is gone.
func (l *Listings) forget(noted *listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.of[noted.address] == noted {
		delete(l.mu.of, noted.address)
	}
}

// Events returns the events that watches share in compressed form; nil of nil.
func (l *Listings) Events() *Events {
	if l == nil {
		return nil
	}
	return &l.events
}

// find returns the note of a list, nil if there is none.
func (l *Listings) find(list apiruntime.Object) *listing {
	value := reflect.ValueOf(list)
	if value.Kind() != reflect.Pointer {
		return nil
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.of[value.Pointer()]
}
