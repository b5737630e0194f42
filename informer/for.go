// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
)

// For returns store as a *cacher.Cacher, and reports whether it is one. For a
// genericregistry.Store, pass Store.Storage.Storage once the store is
// completed.
//
// A server's operator decides whether a resource is cached: with
// --watch-cache=false or --watch-cache-sizes=RESOURCE.GROUP#0 the storage is
// etcd's own, and if cacher.Only or cacher.Except leave a resource out, the
// storage is the cache that k8s.io/apiserver ships. Use an informer over the
// loopback client then.
func For(store storage.Interface) (*cacher.Cacher, bool) {
	c, ok := store.(*cacher.Cacher)
	return c, ok && c != nil
}

// errNoCache is the error of lists and watches of a ListWatch without a cache.
var errNoCache = apierrors.NewInternalError(errors.New("the *cacher.Cacher that this informer or ListWatch was made with is nil: check the second result of informer.For, and use an informer over the loopback client if the store is not cached"))
