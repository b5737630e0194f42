// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// TestCache: every verb through a cache that Decorator has put on kine.
func TestCache(t *testing.T) { onEach(t, testCache) }

func testCache(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db), noProgress, cacher.Configure(func(c *cacher.Config) { c.LabelIndexes = []string{"app"} }))
	all := f.watch(t, f.cacher, "", from("0"))
	onNode := from("0")
	onNode.Predicate = poddata.Predicate("", "spec.nodeName=node-1")
	atNode := f.watch(t, f.cacher, "", onNode)

	a := f.create(t, f.cacher, "ns-1/a", "app=x", "spec.nodeName=node-1")
	b := f.create(t, f.cacher, "ns-1/b", "app=y", "spec.nodeName=node-2")
	c := f.create(t, f.cacher, "ns-2/c", "app=x", "spec.nodeName=node-2")
	f.reached(t, c.ResourceVersion)
	t.Run("get", func(t *testing.T) { f.getWays(t, a, c.ResourceVersion) })
	t.Run("list", func(t *testing.T) {
		require.Equal(t, []string{"ns-1/a", "ns-1/b", "ns-2/c"}, names(f.sameAsStored(t)))
		require.Equal(t, []string{"ns-1/a", "ns-1/b"}, names(f.list(t, f.cacher, "ns-1/", from(c.ResourceVersion))))
		selected := from("0")
		selected.Predicate = poddata.Predicate("app=x", "")
		require.Equal(t, []string{"ns-1/a", "ns-2/c"}, names(f.list(t, f.cacher, "", selected)))
		before := exactly(b.ResourceVersion)
		require.Equal(t, []string{"ns-1/a", "ns-1/b"}, names(f.list(t, f.cacher, "", before)))
		require.Equal(t, f.list(t, f.stored, "", before).Items, f.list(t, f.cacher, "", before).Items)
	})
	t.Run("pages", func(t *testing.T) {
		require.Equal(t, []string{"ns-1/a", "ns-1/b", "ns-2/c"}, f.pages(t, f.cacher))
		require.Equal(t, []string{"ns-1/a", "ns-1/b", "ns-2/c"}, f.pages(t, f.stored))
	})
	moved := f.update(t, f.cacher, "ns-1/a", func(pod *example.Pod) { pod.Spec.NodeName = "node-2" })
	t.Run("refused writes", func(t *testing.T) { f.refusedWrites(t, a) })
	gone := f.remove(t, f.cacher, "ns-1/b")
	require.Equal(t, "b", gone.Name)
	last := f.create(t, f.cacher, "ns-1/last", "spec.nodeName=node-1")

	t.Run("watch", func(t *testing.T) {
		want := []change{
			{watch.Added, "ns-1/a", version(t, a.ResourceVersion)},
			{watch.Added, "ns-1/b", version(t, b.ResourceVersion)},
			{watch.Added, "ns-2/c", version(t, c.ResourceVersion)},
			{watch.Modified, "ns-1/a", version(t, moved.ResourceVersion)},
			{watch.Deleted, "ns-1/b", version(t, gone.ResourceVersion)},
			{watch.Added, "ns-1/last", version(t, last.ResourceVersion)},
		}
		got, err := changes(f.ctx, all, "ns-1/last")
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, want[1:], f.history(t, a.ResourceVersion, "ns-1/last"))
		got, err = changes(f.ctx, atNode, "ns-1/last")
		require.NoError(t, err)
		want[3].typ = watch.Deleted // it has left the selection
		require.Equal(t, []change{want[0], want[3], want[5]}, got)
	})
	f.sameAsStored(t)
	require.EqualValues(t, 1, f.metric(t, "relists_total"))
}

// getWays reads a Pod from the cache, and from kine if the latest state is
// wanted.
func (f *fixture) getWays(t *testing.T, pod *example.Pod, current string) {
	for rv, decision := range map[string]string{"0": "latest", current: "latest", "": "delegate"} {
		before := f.metric(t, "reads_total", "get", decision)
		got := &example.Pod{}
		require.NoError(t, f.cacher.Get(f.ctx, f.prefix+pod.Namespace+"/"+pod.Name, storage.GetOptions{ResourceVersion: rv}, got))
		require.Equal(t, pod, got)
		require.Equal(t, before+1, f.metric(t, "reads_total", "get", decision))
	}
}

// pages lists one by one.
func (f *fixture) pages(t *testing.T, s storage.Interface) (all []string) {
	opts := from("")
	opts.Predicate.Limit = 1
	for {
		page := f.list(t, s, "", opts)
		require.Len(t, page.Items, 1)
		all = append(all, names(page)...)
		if page.Continue == "" {
			return all
		}
		require.NotNil(t, page.RemainingItemCount)
		require.EqualValues(t, 3-len(all), *page.RemainingItemCount)
		opts.Predicate.Continue = page.Continue
	}
}

// refusedWrites: stale is an earlier state of a Pod that has changed since.
func (f *fixture) refusedWrites(t *testing.T, stale *example.Pod) {
	key := f.prefix + stale.Namespace + "/" + stale.Name
	err := f.cacher.Create(f.ctx, key, poddata.Pod(stale.Namespace+"/"+stale.Name), &example.Pod{}, 0)
	require.True(t, storage.IsExist(err), "%v", err)
	err = f.cacher.GuaranteedUpdate(f.ctx, key, &example.Pod{}, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		// An API server handles the version in a PUT like this.
		if obj.(*example.Pod).ResourceVersion != stale.ResourceVersion {
			return nil, apierrors.NewConflict(f.GroupResource, stale.Name, nil)
		}
		return obj, nil
	}), stale)
	require.True(t, apierrors.IsConflict(err), "%v", err)
	err = f.cacher.Get(f.ctx, f.prefix+"ns-1/none", storage.GetOptions{}, &example.Pod{})
	require.True(t, storage.IsNotFound(err), "%v", err)
	err = f.cacher.Delete(f.ctx, f.prefix+"ns-1/none", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	require.True(t, storage.IsNotFound(err), "%v", err)
}

// TestTimeToLive: kine deletes what has a time to live, and the cache hears of it.
func TestTimeToLive(t *testing.T) { onEach(t, testTimeToLive) }

func testTimeToLive(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db), noProgress)
	w := f.watch(t, f.cacher, "", from("0"))
	require.NoError(t, f.cacher.Create(f.ctx, f.prefix+"ns/short", poddata.Pod("ns/short"), &example.Pod{}, 1))
	long := f.create(t, f.cacher, "ns/long")
	var told []watch.EventType
	for range 3 {
		told = append(told, f.next(t, w).Type)
	}
	require.Equal(t, []watch.EventType{watch.Added, watch.Added, watch.Deleted}, told)
	require.Equal(t, []string{"ns/long"}, names(f.sameAsStored(t)))
	require.Equal(t, long.ResourceVersion, f.list(t, f.cacher, "", from("0")).Items[0].ResourceVersion)
}
