// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
)

// REGRESSIONS 113: a store that is not cached is told apart before an informer
// is made.
func TestForStoresThatAreNotCached(t *testing.T) {
	store := newStore()
	c := open(t, store)
	got, ok := informer.For(c)
	require.True(t, ok)
	require.Same(t, c, got)
	for name, other := range map[string]storage.Interface{
		"storage itself":    store,
		"the shipped cache": &shipped.CacheDelegator{},
		"no storage":        nil,
		"no cache":          (*cacher.Cacher)(nil),
	} {
		_, ok := informer.For(other)
		require.False(t, ok, name)
	}
}

// REGRESSIONS 113: without that check, every list and watch returns an error
// that says what to do.
func TestInformerOfNoCache(t *testing.T) {
	var none *cacher.Cacher
	l := informer.ListerWatcher(none, informer.InNamespace("osaka"))
	_, err := l.ListWithContext(t.Context(), metav1.ListOptions{})
	require.ErrorContains(t, err, "check the second result of informer.For")
	_, err = l.WatchWithContext(t.Context(), metav1.ListOptions{})
	require.ErrorContains(t, err, "check the second result of informer.For")

	i := informer.New(none, 0, nil)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	require.NoError(t, i.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		select {
		case failed <- err:
		default:
		}
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		i.RunWithContext(ctx)
	}()
	require.ErrorContains(t, <-failed, "check the second result of informer.For")
	require.False(t, i.HasSynced())
	cancel()
	<-ended
}
