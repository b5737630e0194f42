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

// Encoder shares serializations of lists and initial events between requests. It is safe for
// concurrent use.
type Encoder interface {
	// NewStore returns an empty store for the cache of a resource.
	NewStore(schema.GroupResource) EncodingStore
	// Probe returns Cacher.Watch's result for a request that tests whether a registry returns a
	// cache's watch unchanged, nil for others.
	Probe(context.Context) watch.Interface
}

// EncodingStore keeps serializations of one cache's elements. It is safe for concurrent use.
type EncodingStore interface {
	// Begin prepares a list before the cache copies elements to it. If not admitted, the server has
	// no memory for the response. If omit, the caller leaves the list empty.
	Begin(ctx context.Context, list runtime.Object, elements []*watchcache.Element) (omit, admitted bool)
	// Listed ends a list; elements is nil if storage answered it. If it
	// returns false, the caller must add the omitted items.
	Listed(ctx context.Context, list runtime.Object, elements []*watchcache.Element) bool
	// Watch returns the encoder of a watch's initial events, nil if it needs private copies.
	Watch(ctx context.Context) WatchEncoder
	// Keep keeps the serialization of an event until drop. It calls add when the store's memory for
	// it changes.
	Keep(event []byte, add func(bytes int64)) (drop func())
	// SetLimit sets the maximum of Bytes. Negative: keep nothing.
	SetLimit(bytes int64)
	Bytes() int64
	// Clear drops everything, because a list replaced the elements.
	Clear()
	// Age drops unused serializations. The cache calls it every second, with a monotonic time.
	Age(now time.Duration)
}

type WatchEncoder = dispatch.WatchEncoder

// EventRun is consecutive initial events of one watch.
type EventRun = dispatch.EventRun

func (c *Config) encoder() Encoder {
	if c.Lists == nil {
		return noEncoder{}
	}
	return c.Lists
}

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
