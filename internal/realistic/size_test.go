// SPDX-License-Identifier: Apache-2.0

package realistic_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/internal/realistic"
)

func kinds(t testing.TB) (all []realistic.Kind) {
	t.Helper()
	for _, size := range []int{4000, 15_000} {
		k, err := realistic.Pods(size)
		require.NoError(t, err)
		all = append(all, k)
	}
	for _, size := range []int{1000, 10_000, 100_000} {
		k, err := realistic.CustomResources(size)
		require.NoError(t, err)
		all = append(all, k)
	}
	return all
}

// Objects have the size that they are said to have, and survive their codec.
func TestSizes(t *testing.T) {
	want := []int{4000, 15_000, 1000, 10_000, 100_000}
	for i, k := range kinds(t) {
		encoded, err := k.Encode(7, 3)
		require.NoError(t, err)
		require.InEpsilon(t, want[i], len(encoded), 0.35, k.Name)
		decoded, err := k.Decode(encoded, 0)
		require.NoError(t, err)
		again, err := apiruntime.Encode(k.Codec, decoded)
		require.NoError(t, err)
		back, err := k.Decode(again, 0)
		require.NoError(t, err)
		require.Equal(t, decoded, back, k.Name)
	}
}

// No two objects have one key: a cache has one object for each.
func TestKeys(t *testing.T) {
	for _, k := range kinds(t) {
		seen := map[string]int{}
		for i := range 200 {
			key, err := realistic.Key(k.Make(i))
			require.NoError(t, err)
			require.NotContains(t, seen, key, "%s %d has the key of another one", k.Name, i)
			seen[key] = i
		}
	}
}
