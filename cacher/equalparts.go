// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/internal/dedup"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// sharing makes objects that come share the memory of what is equal in others,
// before anyone else has them (Config.ShareEqualParts). Its methods do nothing if
// it is nil. A maker owns it.
type sharing struct {
	sharer dedup.Sharer
	// latest is the object that has come last: a new one is most likely to be like
	// it.
	latest runtime.Object
}

func newSharing(config *Config) *sharing {
	if !config.ShareEqualParts {
		return nil
	}
	return &sharing{}
}

// change shares the object of a change with the state before it.
func (s *sharing) change(state *watchcache.State, k keyed) {
	if s == nil {
		return
	}
	like := s.latest
	if previous, _ := state.Get(k.key); previous != nil {
		like = previous.Object
	}
	s.sharer.Share(k.object, like)
	s.latest = k.object
}

// listed shares a listed object with the state that the cache has of it, and a new
// one with its neighbour.
func (s *sharing) listed(state *watchcache.State, k keyed, neighbour runtime.Object) {
	if s == nil {
		return
	}
	if previous, _ := state.Get(k.key); previous != nil {
		neighbour = previous.Object
	}
	s.sharer.Share(k.object, neighbour)
}
