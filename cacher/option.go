// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/kube-watchcache/watchcache/metrics"
)

// Option changes what Decorator makes.
type Option func(*options)

type options struct {
	rawStorage RawStorageFunc
	selection  Selection
	config     []func(*Config)
	errs       []error // of options that can't be meant
}

func optionsOf(opts []Option) options {
	o := options{rawStorage: generic.NewRawStorage}
	for _, option := range opts {
		option(&o)
	}
	return o
}

// RawStorageFunc opens the storage under a cache. It has the signature of
// generic.NewRawStorage.
type RawStorageFunc func(config *storagebackend.ConfigForResource, newFunc, newListFunc func() runtime.Object,
	resourcePrefix string) (storage.Interface, factory.DestroyFunc, error)

// WithRawStorage puts another storage under the caches than the one of
// generic.NewRawStorage, which opens a client of etcd for each resource.
func WithRawStorage(open RawStorageFunc) Option {
	return func(o *options) { o.rawStorage = open }
}

func with(set func(*Config)) Option {
	return func(o *options) { o.config = append(o.config, set) }
}

// WithMetrics sets Config.Metrics.
func WithMetrics(m *metrics.Metrics) Option { return with(func(c *Config) { c.Metrics = m }) }

// WithEventsHistoryWindow sets Config.EventsHistoryWindow instead of the
// server's storagebackend.Config.
func WithEventsHistoryWindow(d time.Duration) Option {
	return with(func(c *Config) { c.EventsHistoryWindow = d })
}

// WithLabelIndexes sets Config.LabelIndexes.
func WithLabelIndexes(labels ...string) Option {
	return with(func(c *Config) { c.LabelIndexes = labels })
}

// WithWatchProgress sets Config.WatchProgress.
func WithWatchProgress(supported func() bool) Option {
	return with(func(c *Config) { c.WatchProgress = supported })
}

// WithWindowBytes sets Config.WindowBytes.
func WithWindowBytes(n int64) Option { return with(func(c *Config) { c.WindowBytes = n }) }

// WithDispatchBudget sets Config.DispatchBudget.
func WithDispatchBudget(d time.Duration) Option {
	return with(func(c *Config) { c.DispatchBudget = d })
}

// WithBookmarkInterval sets Config.BookmarkInterval.
func WithBookmarkInterval(d time.Duration) Option {
	return with(func(c *Config) { c.BookmarkInterval = d })
}

// WithFreshnessTimeout sets Config.FreshnessTimeout.
func WithFreshnessTimeout(d time.Duration) Option {
	return with(func(c *Config) { c.FreshnessTimeout = d })
}

// WithStaleReads sets Config.StaleReads.
func WithStaleReads(n int) Option { return with(func(c *Config) { c.StaleReads = n }) }

// WithConsistentGetFromStorage sets Config.ConsistentGetFromStorage.
func WithConsistentGetFromStorage() Option {
	return with(func(c *Config) { c.ConsistentGetFromStorage = true })
}

// WithWatchBuffer sets Config.WatchBuffer.
func WithWatchBuffer(n int) Option { return with(func(c *Config) { c.WatchBuffer = n }) }

// WithEncodingBytes sets Config.EncodingBytes.
func WithEncodingBytes(n int64) Option { return with(func(c *Config) { c.EncodingBytes = n }) }

// WithParkedTimeout sets Config.ParkedTimeout.
func WithParkedTimeout(d time.Duration) Option {
	return with(func(c *Config) { c.ParkedTimeout = d })
}

// WithWatchersCarriedOverRelist sets Config.CarryWatchersOverRelist.
func WithWatchersCarriedOverRelist() Option {
	return with(func(c *Config) { c.CarryWatchersOverRelist = true })
}

// WithConsistencyCheckInterval sets Config.ConsistencyCheckInterval.
func WithConsistencyCheckInterval(d time.Duration) Option {
	return with(func(c *Config) { c.ConsistencyCheckInterval = d })
}

// WithLazyStart sets Config.LazyStart.
func WithLazyStart() Option { return with(func(c *Config) { c.LazyStart = true }) }

// WithIdleTimeout sets Config.IdleTimeout.
func WithIdleTimeout(d time.Duration) Option {
	return with(func(c *Config) { c.IdleTimeout = d })
}

// WithoutSizeEstimation sets Config.DisableSizeEstimation.
func WithoutSizeEstimation() Option {
	return with(func(c *Config) { c.DisableSizeEstimation = true })
}
