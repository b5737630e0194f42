// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"strconv"
	"time"
)

// tuning describes an optional field of Config that holds a number or a switch: its
// default, its bounds, and its flag, if it has one.
type tuning struct {
	name string
	at   func(*Config) any // a *time.Duration, *int64 (bytes), *int or *bool
	// fallback replaces a zero.
	fallback int64
	// shortest is the smallest positive value, most the largest one.
	shortest, most int64
	// none: a negative value is allowed, and removes the bound.
	none        bool
	flag, usage string
}

const (
	// maxDuration and maxBytes are more than is of use, and little enough for
	// sums and multiples of them.
	maxDuration = int64(365 * 24 * time.Hour)
	maxBytes    = 1 << 40
	// millisecond: a number without a unit is nanoseconds, most likely by mistake.
	millisecond = int64(time.Millisecond)
	// second is the least for fields that cost Storage a read of all keys or objects.
	second = int64(time.Second)
)

// tunings are the optional fields in the order of their flags.
var tunings = []tuning{
	{
		name: "EventsHistoryWindow", at: func(c *Config) any { return &c.EventsHistoryWindow }, most: maxDuration,
		flag: "watch-cache-window", usage: "For how long a watch cache keeps events for watches that resume, as far as " +
			"--watch-cache-window-bytes allows. 0: as the server's code says, usually 75s.",
	},
	{
		name: "WindowBytes", at: func(c *Config) any { return &c.WindowBytes }, fallback: DefaultWindowBytes, most: maxBytes,
		flag: "watch-cache-window-bytes", usage: "How much memory the events of one watch cache take beyond the current state, in bytes; " +
			"128Mi, say. Events go when they need more, whatever --watch-cache-window says. Watches that keep more in memory while they " +
			"are sent their initial events end with 410.",
	},
	{
		name: "EncodingBytes", at: func(c *Config) any { return &c.EncodingBytes }, fallback: DefaultEncodingBytes, most: maxBytes, none: true,
		flag: "watch-cache-encoding-bytes", usage: "How much memory one watch cache takes for serializations that watches and lists share, in bytes. " +
			"Unless it is set, a watch cache of many objects takes up to 15 % of their memory, 1Gi at most. 0: none are kept.",
	},
	{
		name: "FreshnessTimeout", at: func(c *Config) any { return &c.FreshnessTimeout }, fallback: int64(DefaultFreshnessTimeout),
		shortest: millisecond, most: maxDuration,
		flag: "watch-cache-freshness-timeout", usage: "How long a LIST waits for a watch cache to be as fresh as the LIST needs; then a few go to etcd " +
			"(--watch-cache-max-fallback-lists) and the others get 429. A GET waits a sixth of it and then goes to etcd.",
	},
	{
		name: "StorageTimeout", at: func(c *Config) any { return &c.StorageTimeout }, fallback: int64(DefaultStorageTimeout),
		shortest: second, most: maxDuration,
		flag: "watch-cache-storage-timeout", usage: "For how long etcd may leave requests unanswered before it counts as lost: that is logged, and reads " +
			"that need it end with 504 until it is back. At least 1s.",
	},
	{
		name: "MaxFallbackLists", at: func(c *Config) any { return &c.MaxFallbackLists }, fallback: DefaultMaxFallbackLists, most: 10_000, none: true,
		flag: "watch-cache-max-fallback-lists", usage: "How many LISTs of a resource go to etcd, at a time and in each --watch-cache-freshness-timeout, " +
			"when its watch cache does not become fresh. 0: none.",
	},
	{
		name: "ConsistencyCheckInterval", at: func(c *Config) any { return &c.ConsistencyCheckInterval }, fallback: int64(DefaultConsistencyCheckInterval),
		shortest: second, most: maxDuration, none: true,
		flag: "watch-cache-consistency-check-interval", usage: "The time between two comparisons of a watch cache with etcd, which read all keys " +
			"of the resource. At least 1s. 0: none are made.",
	},
	{
		name: "ConsistentGetFromStorage", at: func(c *Config) any { return &c.ConsistentGetFromStorage },
		flag: "watch-cache-consistent-get-from-storage", usage: "Answer GETs without a resourceVersion from etcd instead of the watch caches.",
	},
	{
		name: "LazyStart", at: func(c *Config) any { return &c.LazyStart },
		flag: "watch-cache-lazy-start", usage: "Start a watch cache with the first GET, LIST or WATCH of its resource.",
	},
	{
		name: "IdleTimeout", at: func(c *Config) any { return &c.IdleTimeout }, shortest: second, most: maxDuration,
		flag: "watch-cache-idle-timeout", usage: "End a watch cache that was not used for that long, until the next GET, LIST or WATCH. At least 1s. 0: never.",
	},
	{
		name: "AdaptiveIndexes", at: func(c *Config) any { return &c.AdaptiveIndexes }, fallback: DefaultAdaptiveIndexes, most: 100, none: true,
	},
	{
		name: "AdaptivePercent", at: func(c *Config) any { return &c.AdaptivePercent }, fallback: DefaultAdaptivePercent, most: 100,
	},
	{
		name: "DispatchBudget", at: func(c *Config) any { return &c.DispatchBudget }, fallback: int64(DefaultDispatchBudget), most: maxDuration, none: true,
	},
	{
		name: "BookmarkInterval", at: func(c *Config) any { return &c.BookmarkInterval }, fallback: int64(DefaultBookmarkInterval),
		shortest: millisecond, most: maxDuration,
	},
	{
		name: "WatchBuffer", at: func(c *Config) any { return &c.WatchBuffer }, fallback: DefaultWatchBuffer, most: 1 << 16,
	},
}

// get returns the field's value as a number; true is 1.
func (t *tuning) get(c *Config) int64 {
	switch at := t.at(c).(type) {
	case *time.Duration:
		return int64(*at)
	case *int64:
		return *at
	case *int:
		return int64(*at)
	case *bool:
		if *at {
			return 1
		}
	}
	return 0
}

func (t *tuning) set(c *Config, value int64) {
	switch at := t.at(c).(type) {
	case *time.Duration:
		*at = time.Duration(value)
	case *int64:
		*at = value
	case *int:
		*at = int(value)
	case *bool:
		*at = value != 0
	}
}

// text returns a value as the field's type prints it.
func (t *tuning) text(value int64) string {
	if _, ok := t.at(&Config{}).(*time.Duration); ok {
		return time.Duration(value).String()
	}
	return strconv.FormatInt(value, 10)
}

// refuses returns the rule that a value breaks, "" if it breaks none.
func (t *tuning) refuses(value int64) string {
	if _, ok := t.at(&Config{}).(*bool); ok {
		return ""
	}
	switch {
	case value < 0 && !t.none:
		return "it must not be negative"
	case value > 0 && value < t.shortest:
		return "it must be at least " + t.text(t.shortest)
	case value > t.most:
		return "it must be at most " + t.text(t.most)
	}
	return ""
}
