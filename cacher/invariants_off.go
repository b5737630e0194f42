// SPDX-License-Identifier: Apache-2.0

//go:build !invariants

package cacher

// deliveries is empty: nothing is checked without -tags invariants.
type deliveries struct{}

func (*deliveries) event(uint64)    {}
func (*deliveries) bookmark(uint64) {}
