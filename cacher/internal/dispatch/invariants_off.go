// SPDX-License-Identifier: Apache-2.0

//go:build !invariants

package dispatch

// deliveries holds the resourceVersion of the last event sent to a watcher. Nothing is
// checked without -tags invariants.
type deliveries struct{ rv uint64 }

func (d *deliveries) event(rv uint64) { d.rv = rv }
func (*deliveries) bookmark(uint64)   {}
