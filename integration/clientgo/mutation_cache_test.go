// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// mutated is a cache.MutationCache over the indexer that a reflector fills: what a
// controller reads that must see its own writes.
type mutated struct {
	*feed
	*cache.Reflector
	cache.MutationCache
	indexer cache.Indexer
}

func newMutated(t *testing.T, f *feed, options cache.MutationCacheOptions) *mutated {
	t.Helper()
	indexer := cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, labelIndexers())
	options.Indexer = indexer
	m := &mutated{feed: f, indexer: indexer, MutationCache: cache.NewIntegerResourceVersionMutationCacheWithOptions(klog.Background(), indexer, options)}
	m.Reflector = f.reflect(t, indexer)
	return m
}

// requireRead wants the write to be what is read by its name.
func (m *mutated) requireRead(t *testing.T, want *fleetv1.Device) {
	t.Helper()
	obj, exists, err := m.GetByKey(m.key(want.Name))
	require.NoError(t, err)
	require.True(t, exists)
	require.Equal(t, look(t, want), look(t, obj))
}

// requireUnread wants nothing to be read.
func (m *mutated) requireUnread(t *testing.T, name string) {
	t.Helper()
	obj, exists, err := m.GetByKey(m.key(name))
	require.NoError(t, err)
	require.False(t, exists, "%v", obj)
}

// requireZone wants exactly these to be read by the index.
func (m *mutated) requireZone(t *testing.T, value string, want ...*fleetv1.Device) {
	t.Helper()
	objects, err := m.ByIndex(zone, value)
	require.NoError(t, err)
	got, expected := []seen{}, []seen{}
	for _, obj := range objects {
		got = append(got, look(t, obj))
	}
	for _, d := range want {
		expected = append(expected, look(t, d))
	}
	require.ElementsMatch(t, expected, got)
}

// requireStored wants what is read to be the store's own object, and etcd's state.
func (m *mutated) requireStored(t *testing.T) {
	t.Helper()
	m.world.requireEqual(t, m.indexer, m.namespace)
	for _, obj := range m.indexer.List() {
		key, err := cache.MetaNamespaceKeyFunc(obj)
		require.NoError(t, err)
		read, _, err := m.GetByKey(key)
		require.NoError(t, err)
		require.Same(t, obj, read)
	}
}

func TestMutationCache(t *testing.T) {
	promises(t, []clause{
		{"a write is read before it is delivered", mutationRead},
		{"a newer delivery wins over the write", mutationNewer},
		{"a creation is read at once only with IncludeAdds", mutationAdds},
		{"what was deleted does not come back", mutationDeleted},
		{"after a relist the store wins", mutationRelist},
		{"a write is forgotten after the TTL", mutationExpires},
		{"a write is forgotten for MaxCacheSize newer ones", mutationSize},
	})
}

func mutationRead(t *testing.T, f *feed) {
	before := f.create(t, "x")
	m := newMutated(t, f, cache.MutationCacheOptions{})
	reach(t, m, before)
	f.source.hold()
	written := f.label(t, "x", map[string]any{zone: "hh"})
	m.requireRead(t, before)
	m.Mutation(f.own(t, written))
	m.requireRead(t, written)
	again := f.update(t, "x", "two")
	m.Mutation(f.own(t, again))
	m.Mutation(f.own(t, written)) // late
	m.requireRead(t, again)
	stored, _, err := m.indexer.GetByKey(f.key("x"))
	require.NoError(t, err)
	require.Equal(t, look(t, before), look(t, stored), "it is the store that has it already")
	f.source.release()
	m.requireStored(t)
}

func mutationNewer(t *testing.T, f *feed) {
	f.create(t, "x")
	x := f.label(t, "x", map[string]any{zone: "hh"})
	m := newMutated(t, f, cache.MutationCacheOptions{})
	reach(t, m, x)
	f.source.hold()
	mine := f.update(t, "x", "mine")
	m.Mutation(f.own(t, mine))
	m.requireZone(t, "hh", mine)
	f.source.release()
	theirs := f.update(t, "x", "theirs")
	reach(t, m, theirs)
	m.requireRead(t, theirs)
	m.requireZone(t, "hh", theirs)
	m.Mutation(f.own(t, mine)) // late
	m.requireRead(t, theirs)
	m.requireZone(t, "hh", theirs)
	m.requireStored(t)
}

func mutationAdds(t *testing.T, f *feed) {
	m := newMutated(t, f, cache.MutationCacheOptions{})
	eager := &mutated{feed: f, Reflector: m.Reflector, indexer: m.indexer, MutationCache: cache.NewIntegerResourceVersionMutationCache(
		klog.Background(), m.indexer, m.indexer, time.Hour, true)}
	awaitList(t, m)
	f.source.hold()
	f.create(t, "x")
	written := f.label(t, "x", map[string]any{zone: "hh"})
	m.Mutation(f.own(t, written))
	eager.Mutation(f.own(t, written))
	m.requireUnread(t, "x")
	m.requireZone(t, "hh")
	eager.requireZone(t, "hh", written)
	eager.requireZone(t, "b")
	eager.requireRead(t, written) // last: client-go forgets what it has given by key and the store has not
	f.source.release()
	m.requireStored(t)
	eager.requireStored(t)
	eager.requireZone(t, "hh", written)
}

// mutationDeleted: with OnDelete, which a handler calls, not even a response that
// comes late brings a device back. Without it only the TTL does away with it.
func mutationDeleted(t *testing.T, f *feed) {
	x := f.create(t, "x")
	m := newMutated(t, f, cache.MutationCacheOptions{IncludeAdds: true})
	reach(t, m, x)
	mine := f.label(t, "x", map[string]any{zone: "hh"})
	m.Mutation(f.own(t, mine))
	f.delete(t, "x")
	reachVersion(t, m, number(t, f.deleted(t, mine)))
	m.requireZone(t, "hh", mine)
	gone := f.own(t, mine)
	m.OnDelete(gone)
	m.requireZone(t, "hh")
	m.Mutation(gone)
	m.requireZone(t, "hh")
	m.requireUnread(t, "x")

	m.source.hold()
	f.create(t, "x") // another UID
	anew := f.label(t, "x", map[string]any{zone: "hh"})
	m.Mutation(f.own(t, anew))
	m.requireZone(t, "hh", anew)
	m.OnAddOrUpdate(f.own(t, anew))
	m.requireZone(t, "hh")
	m.source.release()
	m.requireStored(t)
	m.requireZone(t, "hh", anew)
}

func mutationRelist(t *testing.T, f *feed) {
	f.create(t, "kept")
	y := f.create(t, "anew")
	m := newMutated(t, f, cache.MutationCacheOptions{IncludeAdds: true})
	reach(t, m, y)
	var late *fleetv1.Device
	f.relist(t, m, func() {
		m.Mutation(f.own(t, f.update(t, "kept", "mine")))
		m.Mutation(f.own(t, f.update(t, "anew", "mine")))
		late = f.create(t, "late")
		m.Mutation(f.own(t, late))
		f.update(t, "kept", "theirs")
		f.delete(t, "anew")
		f.create(t, "anew")
	})
	m.requireRead(t, late)
	m.requireStored(t)
}

// mutationExpires: the cache is asked in a bubble with a clock of its own, about a
// store that stands still.
func mutationExpires(t *testing.T, f *feed) {
	before := f.create(t, "x")
	still := cache.NewIndexer(cache.MetaNamespaceKeyFunc, labelIndexers())
	m := newMutated(t, f, cache.MutationCacheOptions{})
	reach(t, m, before)
	require.NoError(t, still.Add(f.own(t, before)))
	written := f.label(t, "x", map[string]any{zone: "b"})
	f.create(t, "y")
	created := f.label(t, "y", map[string]any{zone: "hh"})
	m.requireStored(t)
	synctest.Test(t, func(t *testing.T) {
		m.MutationCache = cache.NewIntegerResourceVersionMutationCacheWithOptions(klog.Background(), still, cache.MutationCacheOptions{
			Indexer: still, TTL: time.Minute, IncludeAdds: true,
		})
		m.Mutation(f.own(t, written))
		m.Mutation(f.own(t, created))
		elapse(time.Minute - 1)
		m.requireRead(t, written)
		m.requireZone(t, "hh", created)
		elapse(2)
		m.requireRead(t, before)
		m.requireZone(t, "hh")
	})
}

func mutationSize(t *testing.T, f *feed) {
	m := newMutated(t, f, cache.MutationCacheOptions{MaxCacheSize: 1})
	x, y := f.create(t, "x"), f.create(t, "y")
	reach(t, m, y)
	f.source.hold()
	m.Mutation(f.own(t, f.update(t, "x", "two")))
	y2 := f.update(t, "y", "two")
	m.Mutation(f.own(t, y2))
	m.requireRead(t, x)
	m.requireRead(t, y2)
	f.source.release()
	m.requireStored(t)
}

// elapse lets virtual time pass; it is called in a bubble only.
func elapse(d time.Duration) { <-time.After(d) }
