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

// New returns an informer of the objects that c caches, which lists and watches
// through a [ListerWatcher]. No goroutine runs until Run or RunWithContext is
// called. [For] returns the cache of a store; with a nil c, the informer never
// syncs, and logs the reason.
//
// resync is the interval at which handlers are called again for all objects, 0
// for never; indexers are the indexes of the informer's store and may be nil.
// The informer publishes no client-go metrics, which would need a name that is
// unique in the process: for metrics, pass a ListerWatcher to
// cache.NewSharedIndexInformerWithOptions.
func New(c *cacher.Cacher, resync time.Duration, indexers cache.Indexers, options ...Option) cache.SharedIndexInformer {
	source := ListerWatcher(c, options...)
	config := source.config
	var example runtime.Object
	var version string
	if c != nil {
		example = config.NewFunc()
		version = example.GetObjectKind().GroupVersionKind().Version
	}
	// The informer adds to its indexers, so that it needs its own map.
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
// genericregistry.Store, pass Store.Storage.Storage once the store is
// completed.
//
// A server's operator decides whether a resource is cached: with
// --watch-cache=false or --watch-cache-sizes=RESOURCE.GROUP#0 the storage is
// etcd's own; if cacher.Only or cacher.Except leave a resource out, or with
// --watch-cache-implementation=shipped or --watch-cache-shipped=RESOURCE.GROUP,
// the storage is the cache that k8s.io/apiserver ships, and so it is with
// --watch-cache-shadow. Use an informer over the loopback client then.
func For(store storage.Interface) (*cacher.Cacher, bool) {
	c, ok := store.(*cacher.Cacher)
	return c, ok && c != nil
}

// errNoCache is the error of lists and watches of a ListWatch without a cache.
var errNoCache = apierrors.NewInternalError(errors.New("the *cacher.Cacher that this informer or ListWatch was made with is nil: check the second result of informer.For, and use an informer over the loopback client if the store is not cached"))

// Option changes the requests of a ListWatch or an informer. If two options set
// the same, the later one counts.
type Option func(*ListWatch)

// InNamespace restricts requests to one namespace, as a request below
// /namespaces/NAME does. "" means all namespaces. The key prefix is that of the
// keys that cacher.Config.KeyFunc returns for objects in the namespace. If the
// resource has no namespaces, or its keys do not begin with the namespace,
// lists and watches fail with a BadRequest.
func InNamespace(namespace string) Option {
	return func(l *ListWatch) { l.namespace = namespace }
}

// WithTweak calls tweak with the options of every list and watch before they
// are checked, usually to set a selector. Several tweaks are called in the
// order given. They must be safe for concurrent use.
func WithTweak(tweak func(*metav1.ListOptions)) Option {
	return func(l *ListWatch) { l.tweaks = append(l.tweaks, tweak) }
}
