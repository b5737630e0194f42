// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"fmt"
	"log"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// A controller inside of a server handles the web pods of one namespace. Here
// the cache is made by hand; in an API server, informer.For returns it.
func ExampleNew() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	server, err := embedded.Start(ctx, embedded.Config{Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	etcd, err := etcd3.Open(ctx, etcd3.Config{Endpoints: server.Endpoints()})
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()

	scheme := runtime.NewScheme()
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	codec := serializer.NewCodecFactory(scheme).LegacyCodec(examplev1.SchemeGroupVersion)
	resource := schema.GroupResource{Group: "example.apiserver.k8s.io", Resource: "pods"}
	newPod := func() runtime.Object { return &example.Pod{} }
	newPodList := func() runtime.Object { return &example.PodList{} }
	store, err := etcd.Storage(etcd3.ResourceConfig{
		GroupResource: resource, ResourcePrefix: "/pods", Codec: codec, NewFunc: newPod, NewListFunc: newPodList,
	})
	if err != nil {
		log.Fatal(err)
	}
	c, err := cacher.New(cacher.Config{
		Storage: store, Versioner: storage.APIObjectVersioner{}, GroupResource: resource, ResourcePrefix: "/pods",
		KeyFunc: func(pod runtime.Object) (string, error) { return storage.NamespaceKeyFunc("/pods/", pod) },
		GetAttrsFunc: func(object runtime.Object) (labels.Set, fields.Set, error) {
			pod := object.(*example.Pod)
			return pod.Labels, fields.Set{"metadata.name": pod.Name}, nil
		},
		NewFunc: newPod, NewListFunc: newPodList, Codec: codec,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Stop()
	if err := c.Wait(ctx); err != nil {
		log.Fatal(err)
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
		log.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pods.RunWithContext(ctx)
	}()
	cache.WaitForCacheSync(ctx.Done(), handler.HasSynced)

	for namespace, name := range map[string]string{"osaka": "web-1", "kobe": "web-2"} {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "web"}}}
		if err := c.Create(ctx, "/pods/"+namespace+"/"+name, pod, nil, 0); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(<-heard)
	if err := c.Delete(ctx, "/pods/osaka/web-1", newPod(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-heard)

	cancel() // end the informer before the cache
	<-ended
	// Output:
	// add web-1
	// delete web-1
}
