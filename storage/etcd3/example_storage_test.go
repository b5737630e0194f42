// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"fmt"
	"log"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// An etcd in this process, a backend for it, and the storage of one resource.
func ExampleBackend_Storage() {
	ctx := context.Background()
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

	backend, err := etcd3.Open(ctx, etcd3.Config{Endpoints: server.Endpoints()})
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()
	scheme := runtime.NewScheme()
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	store, err := backend.Storage(etcd3.ResourceConfig{
		GroupResource:  schema.GroupResource{Group: "example.apiserver.k8s.io", Resource: "pods"},
		ResourcePrefix: "/pods",
		Codec:          serializer.NewCodecFactory(scheme).LegacyCodec(examplev1.SchemeGroupVersion),
		NewFunc:        func() runtime.Object { return &example.Pod{} },
		NewListFunc:    func() runtime.Object { return &example.PodList{} },
	})
	if err != nil {
		log.Fatal(err)
	}

	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	if err := store.Create(ctx, "/pods/default/web", pod, nil, 0); err != nil {
		log.Fatal(err)
	}
	list := &example.PodList{}
	all := storage.ListOptions{Predicate: storage.Everything, Recursive: true}
	if err := store.GetList(ctx, "/pods/", all, list); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(list.Items), list.Items[0].Name, backend.WatchProgress())
	// Output: 1 web true
}
