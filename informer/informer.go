// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
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
	config := source.layout.config
	var example runtime.Object
	var version string
	if c != nil {
		example = config.NewFunc()
		version = example.GetObjectKind().GroupVersionKind().Version
	}
	// The informer adds to its indexers, so that it needs its own map.
	own := make(cache.Indexers, len(indexers))
	maps.Copy(own, indexers)
	var unnamed *cache.InformerName // names the resource in traces of slow handlers
	return cache.NewSharedIndexInformerWithOptions(source, example, cache.SharedIndexInformerOptions{
		ResyncPeriod:      resync,
		Indexers:          own,
		ObjectDescription: config.GroupResource.String(),
		Identifier:        unnamed.WithResource(config.GroupResource.WithVersion(version)),
	})
}
