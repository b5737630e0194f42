// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"maps"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
)

// New returns an informer of what c caches, fed by [ListerWatcher]. Nothing
// runs until its Run or RunWithContext is called.
//
// resync is how often handlers are given everything again, 0 for never;
// indexers are the store's indexes and may be nil. The informer publishes no
// client-go metrics: one that does needs a name of the process's own, and is
// made with cache.NewSharedIndexInformerWithOptions from a ListerWatcher.
func New(c *cacher.Cacher, resync time.Duration, indexers cache.Indexers, options ...Option) cache.SharedIndexInformer {
	source := ListerWatcher(c, options...)
	config := source.layout.config
	example := config.NewFunc()
	// The informer adds to its indexers: they must not be someone else's, nor
	// nil.
	own := make(cache.Indexers, len(indexers))
	maps.Copy(own, indexers)
	var unnamed *cache.InformerName // which resource, in traces of slow handlers
	version := example.GetObjectKind().GroupVersionKind().Version
	return cache.NewSharedIndexInformerWithOptions(source, example, cache.SharedIndexInformerOptions{
		ResyncPeriod:      resync,
		Indexers:          own,
		ObjectDescription: config.GroupResource.String(),
		Identifier:        unnamed.WithResource(config.GroupResource.WithVersion(version)),
	})
}
