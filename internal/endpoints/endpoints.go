// SPDX-License-Identifier: Apache-2.0

// Package endpoints compares lists of etcd URLs.
package endpoints

import (
	"slices"
	"strings"
)

// Set returns the unique endpoints, sorted and without trailing slashes. Lists with equal sets mean
// the same etcd.
func Set(list []string) []string {
	set := make([]string, len(list))
	for i, endpoint := range list {
		set[i] = strings.TrimRight(endpoint, "/")
	}
	slices.Sort(set)
	return slices.Compact(set)
}

// Same reports whether two lists mean the same etcd.
func Same(a, b []string) bool { return slices.Equal(Set(a), Set(b)) }

// Key returns the set of a list as a comparable value, "" for an empty list.
func Key(list []string) string { return strings.Join(Set(list), ",") }
