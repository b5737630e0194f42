// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// pushed is a cache.UndeltaStore, and all that it has pushed.
type pushed struct {
	*cache.UndeltaStore
	mu struct {
		sync.Mutex
		states [][]any
	}
}

func newPushed() *pushed {
	p := &pushed{}
	p.UndeltaStore = cache.NewUndeltaStore(func(state []any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.states = append(p.mu.states, state)
	}, cache.MetaNamespaceKeyFunc)
	return p
}

// take gives what was pushed since the last time, each state by the devices' names.
func (p *pushed) take(t *testing.T) []map[string]seen {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []map[string]seen{}
	for _, state := range p.mu.states {
		byName := map[string]seen{}
		for _, obj := range state {
			byName[mustInternal(t, obj).Name] = look(t, obj)
		}
		require.Len(t, byName, len(state), "an object is there twice")
		out = append(out, byName)
	}
	p.mu.states = nil
	return out
}

// whole is what a push of exactly these devices looks like.
func whole(t *testing.T, devices ...*fleetv1.Device) map[string]seen {
	t.Helper()
	byName := map[string]seen{}
	for _, d := range devices {
		byName[d.Name] = look(t, d)
	}
	return byName
}

func TestUndeltaStore(t *testing.T) {
	promises(t, []clause{
		{"a list is one push", func(t *testing.T, f *feed) {
			x, y := f.create(t, "x"), f.create(t, "y")
			p := newPushed()
			awaitList(t, f.reflect(t, p))
			require.Equal(t, []map[string]seen{whole(t, x, y)}, p.take(t))
		}},
		{"every change is one push of all that there is", undeltaChanges},
		{"a relist is one push, of the new state only", undeltaRelist},
	})
}

func undeltaChanges(t *testing.T, f *feed) {
	x1 := f.create(t, "x")
	p := newPushed()
	r := f.reflect(t, p)
	awaitList(t, r)
	p.take(t)
	y1, x2 := f.create(t, "y"), f.update(t, "x", "two")
	f.delete(t, "y")
	y2, x3 := f.create(t, "y"), f.update(t, "x", "three")
	reach(t, r, x3)
	require.Equal(t, []map[string]seen{
		whole(t, x1, y1), whole(t, x2, y1), whole(t, x2), whole(t, x2, y2), whole(t, x3, y2),
	}, p.take(t))
	f.delete(t, "y")
	f.delete(t, "x")
	reachVersion(t, r, number(t, f.deleted(t, x3)))
	require.Equal(t, []map[string]seen{whole(t, x3), whole(t)}, p.take(t))
	f.world.requireEqual(t, p, f.namespace)
}

func undeltaRelist(t *testing.T, f *feed) {
	f.create(t, "gone")
	x := f.create(t, "x")
	p := newPushed()
	r := f.reflect(t, p)
	reach(t, r, x)
	p.take(t)
	var late *fleetv1.Device
	f.relist(t, r, func() {
		f.delete(t, "gone")
		x, late = f.update(t, "x", "two"), f.create(t, "late")
	})
	require.Equal(t, []map[string]seen{whole(t, x, late)}, p.take(t))
	f.world.requireEqual(t, p, f.namespace)
}
