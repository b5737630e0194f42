// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// digestOf is the digest of a snapshot's elements, from what it shows.
func digestOf(s *watchcache.Snapshot) (d watchcache.Digest) {
	for _, e := range s.All() {
		d.Toggle(e.Key, e.RV)
	}
	return d
}

// A snapshot's digest is that of the elements it shows, for the latest and for
// earlier ones, however they were made.
func TestDigestFollowsChanges(t *testing.T) {
	s := watchcache.New(roomy)
	require.Zero(t, s.Latest().Digest())
	s.Replace([]*watchcache.Element{element("a", 1, "v"), element("b", 2, "v"), element("b", 1, "v")}, 5)
	var snapshots []*watchcache.Snapshot
	keep := func() { snapshots = append(snapshots, s.Latest()) }
	keep()
	apply(t, s, modified("a", 6, "w"), added("c", 7, "v"))
	keep()
	apply(t, s, deleted("b", 8, "v"))
	keep()
	apply(t, s, deleted("c", 9, "v"), added("b", 10, "v"))
	require.NoError(t, s.Progress(20))
	keep()
	for _, rv := range []uint64{5, 6, 7, 8, 9, 10, 15} {
		snapshots = append(snapshots, at(t, s, rv))
	}
	for _, snapshot := range snapshots {
		require.Equal(t, digestOf(snapshot), snapshot.Digest(), "at %d", snapshot.RV())
	}
	s.Replace(nil, 30)
	require.Zero(t, s.Latest().Digest())
}

// Sets that differ little have different digests.
func TestDigestTellsApart(t *testing.T) {
	seen := map[watchcache.Digest]string{}
	for rv := range uint64(300) {
		for k := range 100 {
			var d watchcache.Digest
			key := fmt.Sprintf("/pods/ns/pod-%d", k)
			d.Toggle(key, rv)
			what := fmt.Sprintf("%s at %d", key, rv)
			require.Empty(t, seen[d], "%s has the same digest", what)
			seen[d] = what
			d.Toggle(key, rv)
			require.Zero(t, d)
		}
	}
	var a, b watchcache.Digest
	a.Toggle("x", 1)
	a.Toggle("y", 2)
	b.Toggle("x", 2)
	b.Toggle("y", 1)
	require.NotEqual(t, a, b)
}
