// SPDX-License-Identifier: Apache-2.0

//go:build !invariants

package dispatch

import "github.com/kube-watchcache/watchcache/watchcache"

// deliveries holds the resourceVersion of a watcher's last event. It checks nothing without -tags
// invariants.
type deliveries struct{ rv uint64 }

func (d *deliveries) event(e *watchcache.Event) { d.rv = e.RV }
func (*deliveries) bookmark(uint64)             {}

func (*registry) checkLocked(*watcher, state) {}
