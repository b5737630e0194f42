// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// A snapshot shows its own resourceVersion for ever (W2, W5).
func TestSnapshotsNeverChange(t *testing.T) {
	s := watchcache.New(roomy)
	var all []*watchcache.Element
	for i := range 200 {
		all = append(all, element(fmt.Sprintf("k%03d", i), 1, "0"))
	}
	s.Replace(all, 1)
	type held struct {
		snapshot *watchcache.Snapshot
		contents string
		byValue  string
	}
	var holds []held
	hold := func(snapshot *watchcache.Snapshot) {
		byValue, _ := rangedIndex(snapshot, "value", "1", "", "")
		holds = append(holds, held{snapshot, contents(snapshot), byValue})
	}
	for i := range 600 {
		key, rv := fmt.Sprintf("k%03d", i*7%200), uint64(i+2)
		switch e, _ := s.Get(key); {
		case e == nil:
			apply(t, s, added(key, rv, "1"))
		case i%3 == 0:
			apply(t, s, deleted(key, rv, "1"))
		default:
			apply(t, s, modified(key, rv, fmt.Sprint(i%3)))
		}
		if i%20 == 0 {
			hold(s.Latest())
			hold(at(t, s, rv-min(rv-1, 15)))
		}
	}
	s.Replace(nil, 1000)
	for _, h := range holds {
		require.Equal(t, h.contents, contents(h.snapshot))
		byValue, _ := rangedIndex(h.snapshot, "value", "1", "", "")
		require.Equal(t, h.byValue, byValue)
	}
}

// Regression 27: namespace ns1 must not match ns11.
func TestPrefixEndsWithItsSlash(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{
		element("/pods/ns1/a", 1, "v"), element("/pods/ns1/b", 1, "v"),
		element("/pods/ns11/a", 1, "v"), element("/pods/ns1-x/a", 1, "v"), element("/pods/ns0/z", 1, "v"),
	}, 1)
	latest := s.Latest()
	require.Equal(t, "/pods/ns1/a=v@1 /pods/ns1/b=v@1", ranged(latest, "/pods/ns1/", ""))
	byValue, _ := rangedIndex(latest, "value", "v", "/pods/ns1/", "")
	require.Equal(t, "/pods/ns1/a=v@1 /pods/ns1/b=v@1", byValue)
	require.Equal(t, 2, latest.Count("/pods/ns1/", ""))
	require.Equal(t, 1, latest.Count("/pods/ns11/", ""))
	require.Equal(t, 5, latest.Count("/pods/", ""))
}
