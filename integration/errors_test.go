// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A request that is wrong, and one for an object that does not exist, get the error of
// storage, with its type and its text, wherever they are answered.
func TestErrorsAreThoseOfStorage(t *testing.T) {
	stored := etcdBackend(t, etcdserver.Start(t, etcdserver.Config{}).Endpoints(), "/errors").Storage
	cached, err := cacher.New(podConfig(stored, poddata.JSONCodec()))
	require.NoError(t, err)
	t.Cleanup(cached.Stop)
	require.NoError(t, cached.Create(t.Context(), "/pods/a/one", poddata.Pod("a/one"), &example.Pod{}, 0))
	require.NoError(t, cached.Wait(t.Context()))

	everything := storage.ListOptions{Predicate: storage.Everything, Recursive: true}
	with := func(change func(*storage.ListOptions)) storage.ListOptions {
		opts := everything
		change(&opts)
		return opts
	}
	version := func(rv string) storage.ListOptions {
		return with(func(o *storage.ListOptions) { o.ResourceVersion = rv })
	}
	keep := storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) { return obj, nil })
	type call func(context.Context, storage.Interface) error
	get := func(key string, opts storage.GetOptions) call {
		return func(ctx context.Context, s storage.Interface) error { return s.Get(ctx, key, opts, &example.Pod{}) }
	}
	list := func(key string, opts storage.ListOptions) call {
		return func(ctx context.Context, s storage.Interface) error {
			return s.GetList(ctx, key, opts, &example.PodList{})
		}
	}
	watch := func(key string, opts storage.ListOptions) call {
		return func(ctx context.Context, s storage.Interface) error {
			_, err := s.Watch(ctx, key, opts)
			return err
		}
	}
	calls := map[string]call{
		"GET of nothing":                 get("/pods/a/none", storage.GetOptions{}),
		"GET of nothing of any age":      get("/pods/a/none", storage.GetOptions{ResourceVersion: "0"}),
		"GET of nothing since a version": get("/pods/a/none", storage.GetOptions{ResourceVersion: "1"}),
		"GET of a namespace":             get("/pods/a", storage.GetOptions{}),
		"LIST with an unknown match": list("/pods", with(func(o *storage.ListOptions) {
			o.ResourceVersion, o.ResourceVersionMatch = "1", "Sometimes"
		})),
		"LIST with a malformed token": list("/pods", with(func(o *storage.ListOptions) { o.Predicate.Continue = "x" })),
		"update of nothing": func(ctx context.Context, s storage.Interface) error {
			return s.GuaranteedUpdate(ctx, "/pods/a/none", &example.Pod{}, false, nil, keep, nil)
		},
		"deletion of nothing": func(ctx context.Context, s storage.Interface) error {
			return s.Delete(ctx, "/pods/a/none", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		},
		"second creation": func(ctx context.Context, s storage.Interface) error {
			return s.Create(ctx, "/pods/a/one", poddata.Pod("a/one"), &example.Pod{}, 0)
		},
	}
	for _, rv := range []string{"x", "-1", "1.5", "18446744073709551616"} {
		calls["GET at "+rv] = get("/pods/a/one", storage.GetOptions{ResourceVersion: rv})
		calls["LIST at "+rv] = list("/pods", version(rv))
	}
	for _, key := range []string{"", "/", ".", "..", "/pods/.", "/pods/..", "/pods/./one", "/pods/../one", "/pods/a/..", "/nodes/a"} {
		calls["GET of "+key] = get(key, storage.GetOptions{})
		calls["GET of any age of "+key] = get(key, storage.GetOptions{ResourceVersion: "0"})
		calls["LIST of "+key] = list(key, everything)
		calls["WATCH of "+key] = watch(key, everything)
		calls["creation of "+key] = func(ctx context.Context, s storage.Interface) error {
			return s.Create(ctx, key, poddata.Pod("a/two"), &example.Pod{}, 0)
		}
		calls["deletion of "+key] = func(ctx context.Context, s storage.Interface) error {
			return s.Delete(ctx, key, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		}
		calls["update of "+key] = func(ctx context.Context, s storage.Interface) error {
			return s.GuaranteedUpdate(ctx, key, &example.Pod{}, true, nil, keep, nil)
		}
	}
	for name, call := range calls {
		want, got := call(t.Context(), stored), call(t.Context(), cached)
		var missing, missed *storage.StorageError
		if errors.As(want, &missed) && storage.IsNotFound(want) && errors.As(got, &missing) {
			// A GET from the cache says at which version there is no such object.
			assert.Equal(t, strings.HasPrefix(name, "GET"), missing.ResourceVersion > 0, "%s: %v at %d", name, got, missing.ResourceVersion)
			missing.ResourceVersion = missed.ResourceVersion
		}
		assert.Error(t, want, name)
		assert.Equal(t, want, got, name)
	}
}
