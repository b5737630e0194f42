// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/dispatch"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// Encoder lets requests to a server share the serializations of lists and of initial events.
// Its methods are safe for concurrent use.
type Encoder interface {
	// NewStore returns an empty store for the cache of a resource.
	NewStore(schema.GroupResource) EncodingStore
	// Probe returns the watch that Cacher.Watch returns for a request that opens no watch,
	// but examines whether a registry returns the watch of a cache unchanged. Probe returns
	// nil for every other request.
	Probe(context.Context) watch.Interface
}

// EncodingStore keeps serializations of the elements of one cache. Its methods are safe for
// concurrent use.
type EncodingStore interface {
	// Begin is called before the items of a list that is read from the cache are filled in.
	// If admitted is false, the server has no memory for the answer. If omit is true, the
	// list is filled in without items.
	Begin(ctx context.Context, list runtime.Object, elements []*watchcache.Element) (omit, admitted bool)
	// Listed is called once a list is complete except for items that Begin omitted, with
	// the elements of its items; nil for a list from storage. The caller must then add
	// the omitted items if Listed returns false.
	Listed(ctx context.Context, list runtime.Object, elements []*watchcache.Element) bool
	// Watch returns the encoder of the initial events of a new watch; nil if the reader of
	// the watch must get private copies.
	Watch(ctx context.Context) WatchEncoder
	// Keep keeps the serialization of an event until drop. add receives the change in bytes
	// when the store needs more or less memory for it.
	Keep(event []byte, add func(bytes int64)) (drop func())
	// SetLimit sets the maximum of Bytes; negative: nothing is kept.
	SetLimit(bytes int64)
	Bytes() int64
	// Clear drops everything: the cache was filled with new elements.
	Clear()
	// Age drops what was not used for long. It is called once a second with the time of a
	// monotonic clock.
	Age(now time.Duration)
}

// WatchEncoder encodes the initial events of one watch.
type WatchEncoder = dispatch.WatchEncoder

// EventRun is consecutive initial events of one watch.
type EventRun = dispatch.EventRun

func (c *Config) encoder() Encoder {
	if c.Lists == nil {
		return noEncoder{}
	}
	return c.Lists
}

// noEncoder is the Encoder and EncodingStore of a cache without Config.Lists.
type noEncoder struct{}

func (noEncoder) NewStore(schema.GroupResource) EncodingStore { return noEncoder{} }
func (noEncoder) Probe(context.Context) watch.Interface       { return nil }
func (noEncoder) Begin(context.Context, runtime.Object, []*watchcache.Element) (bool, bool) {
	return false, true
}
func (noEncoder) Listed(context.Context, runtime.Object, []*watchcache.Element) bool { return true }
func (noEncoder) Watch(context.Context) WatchEncoder                                 { return nil }
func (noEncoder) Keep([]byte, func(int64)) func()                                    { return func() {} }
func (noEncoder) SetLimit(int64)                                                     {}
func (noEncoder) Bytes() int64                                                       { return 0 }
func (noEncoder) Clear()                                                             {}
func (noEncoder) Age(time.Duration)                                                  {}
