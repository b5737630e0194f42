// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"errors"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
)

// New returns an informer of the objects of c, over a [ListerWatcher]. It starts no goroutine
// before Run or RunWithContext. If c is nil, the informer never syncs and logs the reason.
//
// resync is the interval at which handlers are called for all objects, 0 for never. indexers may be
// nil. The informer publishes no client-go metrics, which require a name unique in the process; for
// metrics, pass a ListerWatcher to cache.NewSharedIndexInformerWithOptions.
func New(c *cacher.Cacher, resync time.Duration, indexers cache.Indexers, options ...Option) cache.SharedIndexInformer {
	source := ListerWatcher(c, options...)
	config := source.config
	var example runtime.Object
	var version string
	if c != nil {
		example = config.NewFunc()
		version = example.GetObjectKind().GroupVersionKind().Version
	}
	// The informer adds to its indexers, so it needs its own map.
	own := cache.Indexers{}
	maps.Copy(own, indexers)
	var unnamed *cache.InformerName // names the resource in traces of slow handlers
	return cache.NewSharedIndexInformerWithOptions(source, example, cache.SharedIndexInformerOptions{
		ResyncPeriod:      resync,
		Indexers:          own,
		ObjectDescription: config.GroupResource.String(),
		Identifier:        unnamed.WithResource(config.GroupResource.WithVersion(version)),
	})
}

// For returns store as a *cacher.Cacher, and reports whether it is one. For a
// genericregistry.Store, pass Store.Storage.Storage after the store is completed.
//
// It isn't one if the server doesn't cache the resource (--watch-cache=false,
// --watch-cache-sizes=RESOURCE.GROUP#0), or uses the cacher of k8s.io/apiserver (cacher.Only,
// cacher.Except, --watch-cache-implementation, --watch-cache-shipped, --watch-cache-shadow). Use an
// informer over the loopback client then.
func For(store storage.Interface) (*cacher.Cacher, bool) {
	c, ok := store.(*cacher.Cacher)
	return c, ok && c != nil
}

var errNoCache = apierrors.NewInternalError(errors.New("the *cacher.Cacher that this informer or ListWatch was made with is nil: check the second result of informer.For, and use an informer over the loopback client if the store is not cached"))

// Option changes the requests of a ListWatch or an informer. Later options override earlier ones.
type Option func(*ListWatch)

// InNamespace restricts requests to one namespace, or "" for all. The key prefix is derived from
// cacher.Config.KeyFunc. Lists and watches fail with a BadRequest if the resource has no
// namespaces, or its keys don't begin with the namespace.
func InNamespace(namespace string) Option {
	return func(l *ListWatch) { l.namespace = namespace }
}

// WithTweak calls tweak with the options of every list and watch before validation, e.g. to set a
// selector. Tweaks run in the given order and must be safe for concurrent use.
func WithTweak(tweak func(*metav1.ListOptions)) Option {
	return func(l *ListWatch) { l.tweaks = append(l.tweaks, tweak) }
}
