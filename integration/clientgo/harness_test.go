// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// TestHarness shows that what the tests are checked with can tell good from bad.
func TestHarness(t *testing.T) {
	t.Run("mutation detector is on", func(t *testing.T) {
		require.Equal(t, "true", os.Getenv(detectMutations))
		detector := cache.NewCacheMutationDetector(t.Name())
		_, comparing := detector.(interface{ CompareObjects() })
		require.True(t, comparing, "client-go gives a %T, which detects nothing", detector)
	})
	t.Run("difference", func(t *testing.T) {
		bothTransports(t, func(t *testing.T, fx *fixture, via transport) {
			ns := fx.newNamespace(t)
			d := fx.writer(t, ns)
			d.create(t, "one")
			list, err := via.listerWatcher(t, fx, ns, nil).ListWithContext(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			store := storeOf(t, list)
			require.NoError(t, difference(store, fx.stored(t, ns)))

			d.update(t, "one", "nobody")
			require.ErrorContains(t, difference(store, fx.stored(t, ns)), "resourceVersion")
			d.create(t, "two")
			require.ErrorContains(t, difference(store, fx.stored(t, ns)), "1 objects in the store, 2 in etcd")
			d.delete(t, "one")
			require.ErrorContains(t, difference(store, fx.stored(t, ns)), ns+"/two is in etcd")
			d.delete(t, "two")
			require.ErrorContains(t, difference(store, fx.stored(t, ns)), "1 objects in the store, 0 in etcd")
		})
	})
	t.Run("bytes", func(t *testing.T) {
		bothTransports(t, func(t *testing.T, fx *fixture, via transport) {
			ns := fx.newNamespace(t)
			fx.writer(t, ns).create(t, "one")
			list, err := via.listerWatcher(t, fx, ns, nil).ListWithContext(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			records := fx.stored(t, ns)
			for name, record := range records {
				record.value = []byte(strings.Replace(string(record.value), "hh-1", "hh-2", 1))
				records[name] = record
			}
			require.ErrorContains(t, difference(storeOf(t, list), records), "the store has")
		})
	})
}
