// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/kube-watchcache/watchcache/metrics"
)

// Option changes what Decorator makes. One error names all options that do not
// fit: server.Install returns it at once, a Decorator when it is asked for a
// storage.
type Option func(*options)

// Defaults gives options that apply as far as no other option sets the same.
func Defaults(opts ...Option) Option {
	return func(o *options) { o.defaults = append(o.defaults, opts...) }
}

// RawStorageFunc opens the storage under a cache. The signature is that of
// generic.NewRawStorage.
type RawStorageFunc func(config *storagebackend.ConfigForResource, newFunc, newListFunc func() runtime.Object,
	resourcePrefix string) (storage.Interface, factory.DestroyFunc, error)

// WithRawStorage puts another storage under the caches than the one of
// generic.NewRawStorage, which opens a client of etcd for each resource.
func WithRawStorage(open RawStorageFunc) Option {
	return func(o *options) {
		switch {
		case open == nil:
			o.problems.option("WithRawStorage", "is given nil: "+wantFunction)
		case o.rawStorage != nil:
			o.problems.option("WithRawStorage", "is given twice: want one of them")
		default:
			o.rawStorage = open
		}
	}
}

// with makes the option of this name, which sets one field of Config.
func with(option, field string, set func(*Config)) Option {
	return func(o *options) { o.settings = append(o.settings, setting{option, field, set}) }
}

// WithMetrics sets Config.Metrics.
func WithMetrics(m *metrics.Metrics) Option {
	return with("WithMetrics", "Metrics", func(c *Config) { c.Metrics = m })
}

// WithEventsHistoryWindow sets Config.EventsHistoryWindow instead of the
// server's storagebackend.Config.
func WithEventsHistoryWindow(d time.Duration) Option {
	return with("WithEventsHistoryWindow", "EventsHistoryWindow", func(c *Config) { c.EventsHistoryWindow = d })
}

// WithListStorage sets Config.ListStorage.
func WithListStorage() Option {
	return with("WithListStorage", "ListStorage", func(c *Config) { c.ListStorage = true })
}

// WithLabelIndexes sets Config.LabelIndexes.
func WithLabelIndexes(labels ...string) Option {
	return with("WithLabelIndexes", "LabelIndexes", func(c *Config) { c.LabelIndexes = slices.Clone(labels) })
}

// WithWatchProgress sets Config.WatchProgress.
func WithWatchProgress(supported func() bool) Option {
	if supported == nil {
		return func(o *options) { o.problems.option("WithWatchProgress", "is given nil: "+wantFunction) }
	}
	return with("WithWatchProgress", "WatchProgress", func(c *Config) { c.WatchProgress = supported })
}

// WithWindowBytes sets Config.WindowBytes.
func WithWindowBytes(n int64) Option {
	return with("WithWindowBytes", "WindowBytes", func(c *Config) { c.WindowBytes = n })
}

// WithDispatchBudget sets Config.DispatchBudget.
func WithDispatchBudget(d time.Duration) Option {
	return with("WithDispatchBudget", "DispatchBudget", func(c *Config) { c.DispatchBudget = d })
}

// WithBookmarkInterval sets Config.BookmarkInterval.
func WithBookmarkInterval(d time.Duration) Option {
	return with("WithBookmarkInterval", "BookmarkInterval", func(c *Config) { c.BookmarkInterval = d })
}

// WithFreshnessTimeout sets Config.FreshnessTimeout.
func WithFreshnessTimeout(d time.Duration) Option {
	return with("WithFreshnessTimeout", "FreshnessTimeout", func(c *Config) { c.FreshnessTimeout = d })
}

// WithStorageTimeout sets Config.StorageTimeout.
func WithStorageTimeout(d time.Duration) Option {
	return with("WithStorageTimeout", "StorageTimeout", func(c *Config) { c.StorageTimeout = d })
}

// WithStaleReads sets Config.StaleReads.
func WithStaleReads(n int) Option {
	return with("WithStaleReads", "StaleReads", func(c *Config) { c.StaleReads = n })
}

// WithConsistentGetFromStorage sets Config.ConsistentGetFromStorage.
func WithConsistentGetFromStorage() Option {
	return with("WithConsistentGetFromStorage", "ConsistentGetFromStorage", func(c *Config) { c.ConsistentGetFromStorage = true })
}

// WithWatchBuffer sets Config.WatchBuffer.
func WithWatchBuffer(n int) Option {
	return with("WithWatchBuffer", "WatchBuffer", func(c *Config) { c.WatchBuffer = n })
}

// WithEncodingPercent sets Config.EncodingPercent.
func WithEncodingPercent(n int) Option {
	return with("WithEncodingPercent", "EncodingPercent", func(c *Config) { c.EncodingPercent = n })
}

// WithEncodingBytes sets Config.EncodingBytes.
func WithEncodingBytes(n int64) Option {
	return with("WithEncodingBytes", "EncodingBytes", func(c *Config) { c.EncodingBytes = n })
}

// WithLists sets Config.Lists.
func WithLists(l *Lists) Option {
	return with("WithLists", "Lists", func(c *Config) { c.Lists = l })
}

// WithParkedTimeout sets Config.ParkedTimeout.
func WithParkedTimeout(d time.Duration) Option {
	return with("WithParkedTimeout", "ParkedTimeout", func(c *Config) { c.ParkedTimeout = d })
}

// WithInitialEventsTimeout sets Config.InitialEventsTimeout.
func WithInitialEventsTimeout(d time.Duration) Option {
	return with("WithInitialEventsTimeout", "InitialEventsTimeout", func(c *Config) { c.InitialEventsTimeout = d })
}

// WithInitialEventsBytes sets Config.InitialEventsBytes.
func WithInitialEventsBytes(n int64) Option {
	return with("WithInitialEventsBytes", "InitialEventsBytes", func(c *Config) { c.InitialEventsBytes = n })
}

// WithWatchersCarriedOverRelist sets Config.CarryWatchersOverRelist.
func WithWatchersCarriedOverRelist() Option {
	return with("WithWatchersCarriedOverRelist", "CarryWatchersOverRelist", func(c *Config) { c.CarryWatchersOverRelist = true })
}

// WithConsistencyCheckInterval sets Config.ConsistencyCheckInterval.
func WithConsistencyCheckInterval(d time.Duration) Option {
	return with("WithConsistencyCheckInterval", "ConsistencyCheckInterval", func(c *Config) { c.ConsistencyCheckInterval = d })
}

// WithLazyStart sets Config.LazyStart.
func WithLazyStart() Option {
	return with("WithLazyStart", "LazyStart", func(c *Config) { c.LazyStart = true })
}

// WithIdleTimeout sets Config.IdleTimeout.
func WithIdleTimeout(d time.Duration) Option {
	return with("WithIdleTimeout", "IdleTimeout", func(c *Config) { c.IdleTimeout = d })
}

// WithShareEqualParts sets Config.ShareEqualParts.
func WithShareEqualParts() Option {
	return with("WithShareEqualParts", "ShareEqualParts", func(c *Config) { c.ShareEqualParts = true })
}

// WithoutShippedMetrics sets Config.DisableShippedMetrics.
func WithoutShippedMetrics() Option {
	return with("WithoutShippedMetrics", "DisableShippedMetrics", func(c *Config) { c.DisableShippedMetrics = true })
}

// WithoutSizeEstimation sets Config.DisableSizeEstimation.
func WithoutSizeEstimation() Option {
	return with("WithoutSizeEstimation", "DisableSizeEstimation", func(c *Config) { c.DisableSizeEstimation = true })
}
