// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// podCache is a cache as an API server has one for each of its resources.
func podCache(store *memstore.Store) *cacher.Cacher {
	c, err := cacher.New(cacher.Config{
		Storage: store, Versioner: store.Versioner(), GroupResource: poddata.Resource,
		ResourcePrefix: poddata.Prefix, KeyFunc: poddata.Key, GetAttrsFunc: poddata.Attrs,
		NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: poddata.Codec(),
	})
	if err != nil {
		panic(err)
	}
	return c
}

// A controller inside of an API server hears of the web pods of one namespace.
func ExampleNew() {
	store := memstore.New(poddata.Prefix, poddata.New)
	c := podCache(store)
	defer c.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := c.Wait(ctx); err != nil {
		fmt.Println(err)
		return
	}

	pods := informer.New(c, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		informer.InNamespace("osaka"),
		informer.WithTweak(func(o *metav1.ListOptions) { o.LabelSelector = "app=web" }))
	heard := make(chan string)
	handler, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { heard <- "add " + object.(*example.Pod).Name },
		DeleteFunc: func(object any) { heard <- "delete " + object.(*example.Pod).Name },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pods.RunWithContext(ctx)
	}()
	cache.WaitForCacheSync(ctx.Done(), handler.HasSynced)

	store.Put("/pods/osaka/web-1", poddata.Pod("osaka/web-1", "app=web"))
	fmt.Println(<-heard)
	store.Put("/pods/kobe/web-2", poddata.Pod("kobe/web-2", "app=web"))   // of another namespace
	store.Put("/pods/osaka/web-1", poddata.Pod("osaka/web-1", "app=old")) // not selected any more
	fmt.Println(<-heard)

	cancel()
	<-ended
	// Output:
	// add web-1
	// delete web-1
}

// Without an informer: a list, and what happens after it.
func ExampleListerWatcher() {
	store := memstore.New(poddata.Prefix, poddata.New)
	store.Put("/pods/osaka/web-1", poddata.Pod("osaka/web-1"))
	c := podCache(store)
	defer c.Stop()
	ctx := context.Background()
	if err := c.Wait(ctx); err != nil {
		fmt.Println(err)
		return
	}

	pods := informer.ListerWatcher(c)
	object, err := pods.ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	list := object.(*example.PodList)
	fmt.Println(len(list.Items), "at", list.ResourceVersion)

	w, err := pods.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Stop()
	store.Remove("/pods/osaka/web-1")
	event := <-w.ResultChan()
	fmt.Println(event.Type, event.Object.(*example.Pod).Name, "at", event.Object.(*example.Pod).ResourceVersion)
	// Output:
	// 1 at 2
	// DELETED web-1 at 3
}
