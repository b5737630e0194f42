// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// REGRESSIONS 104: a key that is not under the resource's prefix, whatever it
// is, stops nothing: it is reported, no read and no watch reaches it, and the
// other objects are served.
func TestKeyOutsideThePrefix(t *testing.T) {
	for _, key := range []string{"", "/", "x", "/pods", "/podsa/stray", "/elsewhere/in/the/storage", "/zzz"} {
		t.Run(key, func(t *testing.T) {
			for name, listed := range map[string]bool{"listed": true, "watched": false} {
				t.Run(name, func(t *testing.T) {
					strayKey := func(c *cacher.Config) {
						c.KeyFunc = func(obj runtime.Object) (string, error) {
							if metaOf(t, obj).GetName() == "stray" {
								return key, nil
							}
							return poddata.Key(obj)
						}
					}
					inBubble(t, func() *memstore.Store {
						store := newStore(poddata.Pod("a/one"))
						if listed {
							put(store, poddata.Pod("a/stray"))
						}
						return store
					}, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
						all, scoped := watchPods(t, c, "/pods/", "0"), watchPods(t, c, "/pods/a/", "0")
						expectReceived(t, all, "ADDED a/one@2")
						expectReceived(t, scoped, "ADDED a/one@2")
						put(store, poddata.Pod("a/stray", "x=y"))
						put(store, poddata.Pod("a/two"))
						store.Remove("/pods/a/stray")
						last := put(store, poddata.Pod("a/three"))
						want := []string{"ADDED a/two@" + fmt.Sprint(last-2), "ADDED a/three@" + fmt.Sprint(last)}
						expectReceived(t, all, want...)
						expectReceived(t, scoped, want...)
						expectList(t, c, "/pods/", "", "a/one a/three a/two@"+fmt.Sprint(last))
						e := c.Status().LastError
						require.NotNil(t, e, "the status tells no error")
						assert.Contains(t, e.Message, "ResourcePrefix")
					}, strayKey)
				})
			}
		})
	}
}
