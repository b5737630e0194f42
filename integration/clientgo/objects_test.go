// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// storeOf gives a store of a list's items.
func storeOf(t *testing.T, list runtime.Object) cache.Store {
	t.Helper()
	items, err := meta.ExtractList(list)
	require.NoError(t, err)
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	for _, item := range items {
		require.NoError(t, store.Add(item))
	}
	return store
}

// number is a resourceVersion as a number, as the API server's own storage has them.
func number(t *testing.T, resourceVersion string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	require.NoError(t, err)
	return n
}
