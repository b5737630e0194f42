// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"net/http"

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

// Compress returns a handler that answers requests as next does, and lists that
// next would compress with gzip from what is kept in compressed form. accepts
// reports whether a request is for a list, and a long answer to it is to be
// compressed: for others, nothing is done. Put Compress around the handler of the
// API, within everything that looks at the answer; server.Install does.
//
// Clients read the same bytes from an answer, and the same header. The metrics of
// the server count compressed bytes, as ever.
func (l *Lists) Compress(next http.Handler, accepts func(*http.Request) bool) http.Handler {
	return l.listings.Compress(next, accepts)
}

// note records what a list was filled with. note does nothing on nil, and
// before Serializer was called.
func (l *Lists) note(ctx context.Context, list runtime.Object, p *page, store *wire.Store) {
	if l != nil {
		l.listings.Note(ctx, list, p.elements, store)
	}
}
