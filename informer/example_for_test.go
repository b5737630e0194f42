// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"fmt"

	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	clientcache "k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/informer"
)

// devicesInformer returns an informer of a server's own resource. store is
// completed; fallback is an informer over the server's loopback client.
func devicesInformer(store *genericregistry.Store, fallback clientcache.SharedIndexInformer) clientcache.SharedIndexInformer {
	c, ok := informer.For(store.Storage.Storage)
	if !ok {
		return fallback // the server runs with --watch-cache=false, say
	}
	return informer.New(c, 0, nil)
}

// A server's operator decides whether a resource is cached: check before.
func ExampleFor() {
	var uncached genericregistry.Store
	fmt.Println(devicesInformer(&uncached, nil))
	// Output: <nil>
}
