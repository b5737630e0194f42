// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/cacher/internal/wire"
)

// Lists connects caches with the serializers of an API server, so that lists are
// encoded once and not for every request: Config.Lists of the caches, and
// Lists.Serializer in place of the serializer of the API group. A Lists may serve
// any number of caches and groups; server.Install and server.InstallAPIGroup use
// one for all of a server. The zero value is ready for use.
type Lists struct{ listings wire.Listings }

// Serializer returns a serializer that makes the same bytes as stock. For lists
// in JSON and protobuf that were filled by caches with this Lists, it takes them
// from what was kept when earlier lists were encoded; see Config.EncodingBytes.
//
// Nobody may have changed anything below the top level of the items, which is
// shared with the cache in any case. Lists whose items were changed at the top
// level, by a registry's Decorator for example, are encoded by stock, as are all
// other objects and formats.
func (l *Lists) Serializer(stock runtime.NegotiatedSerializer) runtime.NegotiatedSerializer {
	return l.listings.Serializer(stock)
}

// note records what a list was filled with. note does nothing on nil, and
// before Serializer was called.
func (l *Lists) note(list runtime.Object, p *page, store *wire.Store) {
	if l != nil {
		l.listings.Note(list, p.elements, store)
	}
}
