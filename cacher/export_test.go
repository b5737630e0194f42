// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"time"

	"github.com/kube-watchcache/watchcache/cacher/status"
)

// BoundInitialEvents replaces the bounds of initial events; zeros leave the defaults.
func (c *Config) BoundInitialEvents(timeout time.Duration, bytes int64) {
	c.initialTimeout, c.initialBytes = timeout, bytes
}

// RememberedErrors returns what a cache remembers of errors with these texts.
func RememberedErrors(texts ...string) []status.Error {
	var l errorLog
	for _, text := range texts {
		l.add("summary", text, time.Time{})
	}
	return l.all()
}
