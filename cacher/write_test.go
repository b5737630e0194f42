// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// suggested remembers what writes are offered as the current state, and writes
// to it, as a storage does that serializes it.
type suggested struct {
	*memstore.Store
	last runtime.Object
}

func (s *suggested) note(suggestion runtime.Object) {
	s.last = nil
	if suggestion != nil {
		s.last = suggestion.DeepCopyObject()
		pod := suggestion.(*example.Pod)
		pod.ResourceVersion = ""
		if pod.Labels != nil {
			pod.Labels["x"] = "written by storage"
		}
	}
}

func (s *suggested) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggestion runtime.Object, opts storage.DeleteOptions) error {
	s.note(suggestion)
	return s.Store.Delete(ctx, key, out, preconditions, validate, suggestion, opts)
}

func (s *suggested) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion runtime.Object) error {
	s.note(suggestion)
	return s.Store.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, suggestion)
}

// Regression 25, the cache's share of it: an update is offered a copy of the
// cached object, and it is storage that tries again with the live one. The
// conformance suites show the whole of it on etcd. Regression 144: a deletion is not,
// so that storage refuses to delete what it can't read.
func TestWritesAreOfferedTheCachedObject(t *testing.T) {
	store := &suggested{Store: newStore(poddata.Pod("a/one", "x=y"))}
	c := start(t, store)
	cached := poddata.Pod("a/one", "x=y")
	cached.ResourceVersion = "2"
	keep := storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) { return obj, nil })
	store.Hold() // the cache stays as it is
	for _, tc := range []struct {
		name, key string
		callers   runtime.Object
		want      runtime.Object
	}{
		{"a cached object", "/pods/a/one", nil, cached},
		{"a cached object, not the caller's", "/pods/a/one", poddata.Pod("a/other"), cached},
		{"the caller's, where nothing is cached", "/pods/a/none", poddata.Pod("a/other"), poddata.Pod("a/other")},
		{"nothing", "/pods/a/none", nil, nil},
	} {
		_ = c.GuaranteedUpdate(testContext(t), tc.key, &example.Pod{}, false, nil, keep, tc.callers)
		assert.Equal(t, tc.want, store.last, "update, %s", tc.name)
		deny := func(context.Context, runtime.Object) error { return context.Canceled }
		_ = c.Delete(testContext(t), tc.key, &example.Pod{}, nil, deny, tc.callers, storage.DeleteOptions{})
		assert.Equal(t, tc.callers, store.last, "delete, %s", tc.name)
		for _, pod := range expectList(t, c, "/pods/", "0", "a/one@2").Items {
			assert.Equal(t, "y", pod.Labels["x"], "%s: storage has written to the cached object", tc.name)
			assert.Equal(t, "2", pod.ResourceVersion, "%s: storage has written to the cached object", tc.name)
		}
	}
}

// REGRESSIONS 144: a storage that does not say how it reads encrypted objects is not
// offered the cached object for an update of one.
func TestDecoratedUpdatesOfEncryptedObjects(t *testing.T) {
	for name, encrypted := range map[string]bool{"plain": false, "encrypted": true} {
		t.Run(name, func(t *testing.T) {
			store := &suggested{Store: newStore(poddata.Pod("a/one"))}
			open := func(decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
				return store, func() {}, nil
			}
			request := askedFor(func(a *asked) {
				if encrypted {
					a.config.Transformer = &prefixing{prefix: "x"}
				}
			})
			decorated, destroy, err := request.of(cacher.Decorator(cacher.WithRawStorage(decoration.AsRaw(open))))
			require.NoError(t, err)
			defer destroy()
			require.NoError(t, decorated.(*cacher.Cacher).Wait(testContext(t)))
			keep := storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) { return obj, nil })
			require.NoError(t, decorated.GuaranteedUpdate(testContext(t), "/pods/a/one", &example.Pod{}, false, nil, keep, nil))
			require.Equal(t, encrypted, store.last == nil)
		})
	}
}
