// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// The error that ends watchers is an object of each watcher's own: an API
// server's handlers write the kind into it while they encode it, all at once.
func TestWatchersGetErrorsOfTheirOwn(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		watches := []*podWatch{watchPods(t, c, "/pods/", "2"), watchPods(t, c, "/pods/", "2")}
		synctest.Wait()
		store.Corrupt(apierrors.NewInternalError(errors.New("can't be decoded")))
		put(store, poddata.Pod("a/corrupt"))
		for _, w := range watches {
			event := <-w.ResultChan()
			status, ok := event.Object.(*metav1.Status)
			require.Equal(t, watch.Error, event.Type, "what a watcher got: %v", event.Object)
			require.True(t, ok, "a watcher got a %T", event.Object)
			assert.Empty(t, status.Kind, "the error was encoded by another watcher's handler: %+v", status.TypeMeta)
			status.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Status"})
		}
	})
}
