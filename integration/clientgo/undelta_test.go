// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"
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
func (p *pushed) take(t *testing.T) []map[string]contents {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []map[string]contents{}
	for _, state := range p.mu.states {
		byName := map[string]contents{}
		for _, obj := range state {
			byName[mustInternal(t, obj).Name] = look(t, obj)
		}
		require.Len(t, byName, len(state), "an object is there twice")
		out = append(out, byName)
	}
	p.mu.states = nil
	return out
}
