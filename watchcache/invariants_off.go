// SPDX-License-Identifier: Apache-2.0

//go:build !invariants

package watchcache

// seal is empty: nothing is checked without -tags invariants.
//
//lint:ignore U1000 the field of this type is empty in this build
type seal struct{}

func (*Element) seal()                    {}
func (*Element) checkSeal()               {}
func (*Snapshot) checkRV()                {}
func assert(bool, string, string, ...any) { /* compiled away */ }
