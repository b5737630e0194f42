// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
)

// inProcess gives what lists and watches the cache itself.
func inProcess(c *cacher.Cacher, namespace string, change tweak) lister {
	options := []informer.Option{informer.InNamespace(namespace)}
	if change != nil {
		options = append(options, informer.WithTweak(change))
	}
	return informer.ListerWatcher(c, options...)
}

// newInformer gives an informer on the cache itself.
func newInformer(c *cacher.Cacher, namespace string, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	return informer.New(c, resync, indexers, informer.InNamespace(namespace))
}
