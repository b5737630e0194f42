// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/storage/memory"
)

// A program that owns its objects says what there is.
func ExampleNew() {
	store, err := memory.New(memory.Config{
		GroupResource:  schema.GroupResource{Resource: "pods"},
		ResourcePrefix: "/pods",
		KeyFunc:        func(obj runtime.Object) (string, error) { return storage.NamespaceKeyFunc("/pods/", obj) },
		GetAttrsFunc:   storage.DefaultNamespaceScopedAttr,
		NewFunc:        func() runtime.Object { return &example.Pod{} },
	})
	if err != nil {
		panic(err)
	}
	pod := &example.Pod{}
	pod.Namespace, pod.Name = "default", "a"
	if err := store.Upsert(context.Background(), pod); err != nil {
		panic(err)
	}
	if err := store.Upsert(context.Background(), &example.Pod{}); err != nil {
		fmt.Println(err)
	}
	// Output: Upsert pods: an object in namespace "" has no name
}
