// SPDX-License-Identifier: Apache-2.0

package embedded_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// A cache of Pods over an etcd, without an API server around it. Pods are written
// through the cache and listed from memory by an index. A watch from resourceVersion 0
// begins with the objects that exist and goes on with their changes. Watchers share the
// objects of changes: GetObject returns a copy that the receiver may write to.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // ends the watch
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	server, err := embedded.Start(ctx, embedded.Config{Dir: dir}) // any etcd will do
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
	attributes := func(object runtime.Object) (labels.Set, fields.Set, error) {
		pod := object.(*example.Pod)
		return pod.Labels, fields.Set{"metadata.name": pod.Name, "spec.nodeName": pod.Spec.NodeName}, nil
	}
	c, err := cacher.New(cacher.Config{
		Storage: store, Versioner: storage.APIObjectVersioner{},
		GroupResource: resource, ResourcePrefix: "/pods",
		KeyFunc: func(pod runtime.Object) (string, error) { return storage.NamespaceKeyFunc("/pods/", pod) },
		NewFunc: newPod, NewListFunc: newPodList,
		GetAttrsFunc: attributes, LabelIndexes: []string{"app"},
	})
	if err != nil {
		log.Fatal(err) // names every field that can't be used
	}
	defer c.Stop()
	if err := c.Wait(ctx); err != nil {
		log.Fatal(err)
	}

	for name, app := range map[string]string{"web-1": "web", "web-2": "web", "db-1": "db"} {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "osaka", Name: name, Labels: map[string]string{"app": app}}}
		if err := c.Create(ctx, "/pods/osaka/"+name, pod, nil, 0); err != nil {
			log.Fatal(err)
		}
	}
	pods := &example.PodList{}
	err = c.GetList(ctx, "/pods/osaka/", storage.ListOptions{
		Recursive: true,
		Predicate: storage.SelectionPredicate{
			Label: labels.SelectorFromSet(labels.Set{"app": "web"}), Field: fields.Everything(), GetAttrs: attributes,
		},
	}, pods)
	if err != nil {
		log.Fatal(err)
	}
	for _, pod := range pods.Items {
		fmt.Println(pod.Name)
	}

	w, err := c.Watch(ctx, "/pods/osaka/db-1", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop()
	next := func() (watch.EventType, string) {
		event, open := <-w.ResultChan()
		if !open {
			log.Fatal("the watch has ended: list, and watch again")
		}
		object := event.Object
		if shared, ok := object.(runtime.CacheableObject); ok {
			object = shared.GetObject()
		}
		accessor, err := meta.Accessor(object) // an ERROR event has a *metav1.Status
		if err != nil {
			log.Fatal(err)
		}
		return event.Type, accessor.GetName()
	}
	fmt.Println(next())
	if err := c.Delete(ctx, "/pods/osaka/db-1", newPod(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(next())
	// Output:
	// web-1
	// web-2
	// ADDED db-1
	// DELETED db-1
}
