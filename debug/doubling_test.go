// SPDX-License-Identifier: Apache-2.0

//go:build unix && !race && !invariants

// The race detector and the invariants take time of their own.

package debug

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/internal/cachetest"
	"github.com/kube-watchcache/watchcache/internal/doubling"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A page takes time in proportion to the number of watches, and of caches (regression 178).
func TestWorkIsLinear(t *testing.T) {
	t.Run("watches", func(t *testing.T) {
		doubling.Check(t, 300, func(n int) func() {
			c := cachetest.Start(t, cachetest.NewStore(poddata.Pod("a/one")))
			for i := range n {
				pred := storage.Everything
				pred.Label = labels.SelectorFromSet(labels.Set{"app": fmt.Sprint(i)})
				w, err := c.Watch(t.Context(), poddata.Prefix, storage.ListOptions{ResourceVersion: "2", Recursive: true, Predicate: pred})
				require.NoError(t, err)
				t.Cleanup(w.Stop)
			}
			cachetest.Until(t, "all watches are live", func() bool { return c.Status().Watches.Live == n })
			return func() {
				for _, order := range status.Orders() {
					for _, offset := range []int{0, n / 2} {
						target := fmt.Sprintf("%s?format=json&values=true&resource=pods&sort=%s&offset=%d", Path, order, offset)
						require.Equal(t, http.StatusOK, serve(t, []*cacher.Cacher{c}, http.MethodGet, target).Code)
					}
				}
			}
		})
	})
	t.Run("caches", func(t *testing.T) {
		doubling.Check(t, 20, func(n int) func() {
			store, caches := cachetest.NewStore(), make([]*cacher.Cacher, n)
			for i := range caches {
				caches[i] = cachetest.Open(t, store, func(c *cacher.Config) { c.LazyStart = true })
			}
			return func() {
				for range 20 {
					require.Equal(t, http.StatusOK, serve(t, caches, http.MethodGet, Path+"?format=json").Code)
				}
			}
		})
	})
}
