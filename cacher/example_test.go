// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A cache over any storage.Interface: here one in memory, usually one that
// package storage/etcd3 has opened.
func ExampleNew() {
	store := memstore.New("/pods/", poddata.New)
	store.Put("/pods/osaka/web", poddata.Pod("osaka/web", "app=web"))

	c, err := cacher.New(cacher.Config{
		Storage:        store,
		Versioner:      store.Versioner(),
		GroupResource:  poddata.Resource,
		ResourcePrefix: "/pods/",
		KeyFunc:        func(o runtime.Object) (string, error) { return storage.NamespaceKeyFunc("/pods/", o) },
		GetAttrsFunc:   poddata.Attrs,
		NewFunc:        poddata.New,
		NewListFunc:    poddata.NewList,
		Codec:          poddata.Codec(),
		LabelIndexes:   []string{"app"},
	})
	if err != nil {
		fmt.Println(err) // names every field that does not fit
		return
	}
	defer c.Stop()
	ctx := context.Background()
	if err := c.Wait(ctx); err != nil {
		fmt.Println(err)
		return
	}

	pods := &example.PodList{}
	opts := storage.ListOptions{Recursive: true, Predicate: poddata.Predicate("app=web", "")}
	if err := c.GetList(ctx, "/pods/osaka/", opts, pods); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(pods.Items[0].Name, "at", pods.ResourceVersion)
	// Output: web at 2
}

// A decorator takes the place of genericregistry.StorageWithCacher.
func ExampleDecorator() {
	options := generic.RESTOptions{
		Decorator: cacher.Decorator(cacher.WithLabelIndexes("app"), cacher.WithWindowBytes(64<<20)),
	}
	fmt.Println(options.Decorator != nil)
	// Output: true
}
