// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
)

// expiring is a cache.ExpirationCache with a clock of the test's.
type expiring struct {
	cache.Store
	clock *clocktesting.FakeClock
	// expired are the keys that were forgotten.
	expired chan string
}

const ttl = time.Minute

func newExpiring() *expiring {
	e := &expiring{clock: clocktesting.NewFakeClock(time.Unix(1_000_000, 0)), expired: make(chan string, 100)}
	e.Store = cache.NewFakeExpirationStore(cache.DeletionHandlingMetaNamespaceKeyFunc, e.expired, &cache.TTLPolicy{TTL: ttl, Clock: e.clock}, e.clock)
	return e
}

// requireGone wants the store to have forgotten these keys, once each, since the
// last time.
func (e *expiring) requireGone(t *testing.T, want ...string) {
	t.Helper()
	got := []string{}
	for len(e.expired) > 0 {
		got = append(got, <-e.expired)
	}
	require.ElementsMatch(t, want, got)
}

func TestExpirationCache(t *testing.T) {
	promises(t, []clause{
		{"what is young is what etcd has", expirationYoung},
		{"what is older than the TTL is forgotten when it is read", expirationForgets},
		{"an update makes young again", expirationUpdate},
		{"a deletion deletes, whether it was forgotten or not", expirationDelete},
		{"a relist brings everything back", expirationRelist},
		{"NewTTLStore: with a TTL of 0 nothing is forgotten", expirationNever},
	})
}

func expirationYoung(t *testing.T, f *feed) {
	e := newExpiring()
	f.createMany(t, "x", 3)
	r := f.reflect(t, e)
	awaitList(t, r)
	f.update(t, "x-000", "two")
	f.delete(t, "x-001")
	reach(t, r, f.create(t, "y"))
	e.clock.Step(ttl) // no older than that
	f.world.requireEqual(t, e, f.namespace)
	require.Len(t, e.List(), 3)
	e.requireGone(t)
}

func expirationForgets(t *testing.T, f *feed) {
	e := newExpiring()
	f.create(t, "x")
	y := f.create(t, "y")
	r := f.reflect(t, e)
	reach(t, r, y)
	e.clock.Step(ttl / 2)
	z := f.create(t, "z")
	reach(t, r, z)
	e.clock.Step(ttl/2 + 1)
	e.requireGone(t)
	_, exists, err := e.GetByKey(f.key("x"))
	require.NoError(t, err)
	require.False(t, exists)
	e.requireGone(t, f.key("x"))
	_, exists, err = e.Get(f.own(t, z))
	require.NoError(t, err)
	require.True(t, exists, "it is younger")
	require.ElementsMatch(t, []string{f.key("y"), f.key("z")}, e.ListKeys(), "nobody has asked for y")
	require.Equal(t, []string{f.key("z")}, keysOf(t, e.List()))
	e.requireGone(t, f.key("y"))
	require.Equal(t, []string{f.key("z")}, e.ListKeys())
}

func expirationUpdate(t *testing.T, f *feed) {
	e := newExpiring()
	f.create(t, "x")
	y := f.create(t, "y")
	r := f.reflect(t, e)
	reach(t, r, y)
	e.clock.Step(ttl / 2)
	x := f.update(t, "x", "two")
	reach(t, r, x)
	e.clock.Step(ttl/2 + 1)
	require.Len(t, e.List(), 1)
	obj, exists, err := e.GetByKey(f.key("x"))
	require.NoError(t, err)
	require.True(t, exists)
	require.Equal(t, look(t, x), look(t, obj))
	e.requireGone(t, f.key("y"))
	y = f.update(t, "y", "two")
	reach(t, r, y)
	f.world.requireEqual(t, e, f.namespace)
}

func expirationDelete(t *testing.T, f *feed) {
	e := newExpiring()
	f.create(t, "x")
	y := f.create(t, "y")
	r := f.reflect(t, e)
	reach(t, r, y)
	f.delete(t, "x")
	f.world.requireEqual(t, e, f.namespace)
	e.clock.Step(ttl + 1)
	require.Empty(t, e.List())
	e.requireGone(t, f.key("y"))
	f.delete(t, "y")
	reachVersion(t, r, number(t, f.deleted(t, y)))
	f.world.requireEqual(t, e, f.namespace)
}

func expirationRelist(t *testing.T, f *feed) {
	e := newExpiring()
	f.create(t, "x")
	y := f.create(t, "y")
	r := f.reflect(t, e)
	reach(t, r, y)
	e.clock.Step(ttl + 1)
	require.Empty(t, e.List())
	f.relist(t, r, func() { f.delete(t, "x") })
	f.world.requireEqual(t, e, f.namespace)
	require.Equal(t, []string{f.key("y")}, keysOf(t, e.List()))
	e.clock.Step(ttl + 1)
	require.Empty(t, e.List())
}

func expirationNever(t *testing.T, f *feed) {
	s := cache.NewTTLStore(cache.DeletionHandlingMetaNamespaceKeyFunc, 0)
	f.createMany(t, "x", 3)
	r := f.reflect(t, s)
	awaitList(t, r)
	f.delete(t, "x-000")
	x := f.update(t, "x-001", "two")
	reach(t, r, x)
	f.world.requireEqual(t, s, f.namespace)
}
