// SPDX-License-Identifier: Apache-2.0

//go:build unix && !race && !invariants

// The race detector and the invariants take time of their own.

package cacher_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/cachetest"
	"github.com/kube-watchcache/watchcache/internal/doubling"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// What n watches cost is in proportion to n, whether they are opened, live in silence, receive
// events, lag behind, or end (regression 178).
func TestWatchesAreLinear(t *testing.T) {
	const events = 20
	own := func(i int) labels.Selector { return labels.SelectorFromSet(labels.Set{"app": fmt.Sprint(i)}) }
	other := func(i int) labels.Selector {
		selector, err := labels.Parse(fmt.Sprintf("app!=other-%d", i))
		require.NoError(t, err)
		return selector
	}
	for name, test := range map[string]struct {
		label func(i int) labels.Selector
		reads bool
	}{
		"of one query":              {func(int) labels.Selector { return labels.Everything() }, true},
		"of a value each":           {own, true},
		"of a query each":           {other, true},
		"of one query, not read":    {func(int) labels.Selector { return labels.Everything() }, false},
		"of a query each, not read": {other, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				doubling.Check(t, 200, func(n int) func() {
					store := cachetest.NewStore(poddata.Pod("a/one"))
					c := cachetest.Start(t, store)
					return func() {
						watches := make([]watch.Interface, n)
						for i := range watches {
							var err error
							watches[i], err = c.Watch(t.Context(), poddata.Prefix, storage.ListOptions{
								ResourceVersion: "2", Recursive: true,
								Predicate: storage.SelectionPredicate{Label: test.label(i), Field: storage.Everything.Field, GetAttrs: poddata.Attrs, AllowWatchBookmarks: true},
							})
							require.NoError(t, err)
						}
						for range events {
							cachetest.Put(store, poddata.Pod("a/one"))
							synctest.Wait()
							for _, w := range watches {
								for test.reads && len(w.ResultChan()) > 0 {
									<-w.ResultChan()
								}
							}
						}
						time.Sleep(3 * time.Minute) // of the bubble
						c.Stop()
						synctest.Wait()
					}
				})
			})
		})
	}
}
