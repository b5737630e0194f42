// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

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
