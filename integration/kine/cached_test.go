// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// cached is a resource's cache, and its storage past the cache. Names are
// namespace/name.
type cached struct {
	resource
	ctx    context.Context
	cacher *cacher.Cacher
	stored storage.Interface
}

// create stores a Pod through s and returns it as stored.
func (c *cached) create(t *testing.T, s storage.Interface, name string, attrs ...string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	require.NoError(t, s.Create(c.ctx, c.prefix+name, poddata.Pod(name, attrs...), out, 0))
	return out
}

// remove deletes a Pod through s.
func (c *cached) remove(t *testing.T, s storage.Interface, name string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	require.NoError(t, s.Delete(c.ctx, c.prefix+name, out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
	return out
}

// reached waits until the cache has reached the version.
func (c *cached) reached(t *testing.T, rv string) {
	t.Helper()
	want := version(t, rv)
	eventually(t, func() bool { return c.cacher.Status().ResourceVersion >= want }, "the cache does not reach "+rv)
}

func version(t *testing.T, rv string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(rv, 10, 64)
	require.NoError(t, err)
	return n
}

// from are the options of a list or watch of everything at a version; "": the
// most recent one.
func from(rv string) storage.ListOptions {
	return storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: rv}
}

// list lists under a namespace; "" for all.
func (c *cached) list(t *testing.T, s storage.Interface, namespace string, opts storage.ListOptions) *example.PodList {
	t.Helper()
	list := &example.PodList{}
	require.NoError(t, s.GetList(c.ctx, c.prefix+namespace, opts, list))
	return list
}

func names(list *example.PodList) (names []string) {
	for i := range list.Items {
		names = append(names, list.Items[i].Namespace+"/"+list.Items[i].Name)
	}
	return names
}

// sameAsStored waits until the cache holds what is stored, and returns it.
func (c *cached) sameAsStored(t *testing.T) *example.PodList {
	t.Helper()
	var stored *example.PodList
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		cached := &example.PodList{}
		stored = &example.PodList{}
		require.NoError(t, c.cacher.GetList(c.ctx, c.prefix, from("0"), cached))
		require.NoError(t, c.stored.GetList(c.ctx, c.prefix, from(""), stored))
		require.Equal(t, names(stored), names(cached))
		for i := range stored.Items {
			require.True(t, apiequality.Semantic.DeepEqual(stored.Items[i], cached.Items[i]),
				"item %d is stored as %v, cached as %v", i, stored.Items[i], cached.Items[i])
		}
	}, patience, 10*time.Millisecond)
	return stored
}
