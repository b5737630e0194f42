// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"testing"

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

// requireZone wants exactly these to be read by the index.
func (m *mutated) requireZone(t *testing.T, value string, want ...*fleetv1.Device) {
	t.Helper()
	objects, err := m.ByIndex(zone, value)
	require.NoError(t, err)
	got, expected := []contents{}, []contents{}
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
	m.fixture.requireEqual(t, m.indexer, m.namespace)
	for _, obj := range m.indexer.List() {
		key, err := cache.MetaNamespaceKeyFunc(obj)
		require.NoError(t, err)
		read, _, err := m.GetByKey(key)
		require.NoError(t, err)
		require.Same(t, obj, read)
	}
}

func TestMutationCache(t *testing.T) {
	eachClause(t, []clause{
		{"a write is read before it is delivered", mutationRead},
		{"a newer delivery wins over the write", mutationNewer},
		{"after a relist the store wins", mutationRelist},
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

func mutationRelist(t *testing.T, f *feed) {
	f.create(t, "kept")
	y := f.create(t, "recreated")
	m := newMutated(t, f, cache.MutationCacheOptions{IncludeAdds: true})
	reach(t, m, y)
	var late *fleetv1.Device
	f.relist(t, m, func() {
		m.Mutation(f.own(t, f.update(t, "kept", "mine")))
		m.Mutation(f.own(t, f.update(t, "recreated", "mine")))
		late = f.create(t, "late")
		m.Mutation(f.own(t, late))
		f.update(t, "kept", "theirs")
		f.delete(t, "recreated")
		f.create(t, "recreated")
	})
	m.requireRead(t, late)
	m.requireStored(t)
}
