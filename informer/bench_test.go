// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// crowd is the number of objects in the benchmarks' cache.
const crowd = 5000

// benchPod is of about the shape that objects have: ten labels and
// annotations, three managers, an owner.
func benchPod(i int) *example.Pod {
	pod := poddata.Pod(fmt.Sprintf("ns%02d/pod%05d", i%100, i), "app=web", "team=blue", "tier=front", "release=7", "zone=b")
	pod.Annotations = map[string]string{"a.example.com/one": "1", "a.example.com/two": "2", "a.example.com/three": "3", "a.example.com/four": "4", "a.example.com/five": "5"}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-7", UID: "u", Controller: new(true)}}
	for _, manager := range []string{"kubectl", "controller", "node"} {
		pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: "Apply", APIVersion: "v1", Time: &metav1.Time{}, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:app":{},"f:team":{}}},"f:spec":{"f:nodeName":{}}}`),
		})
	}
	return pod
}

func benchCache(b *testing.B) *cacher.Cacher {
	b.Helper()
	store := newStore()
	for i := range crowd {
		put(store, benchPod(i))
	}
	return start(b, store)
}

// perObject reports the cost of a round for one of its objects.
func perObject(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*crowd), "ns/object")
}

// BenchmarkList is a list of everything, beside the cache's own, whose items
// share everything below their top level with the cache, and beside the minimum
// cost of a list of deep copies.
func BenchmarkList(b *testing.B) {
	c := benchCache(b)
	getList := func(b *testing.B) *example.PodList {
		pods := &example.PodList{}
		opts := storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true}
		if err := c.GetList(b.Context(), poddata.Prefix, opts, pods); err != nil || len(pods.Items) != crowd {
			b.Fatal(len(pods.Items), err)
		}
		return pods
	}
	b.Run("GetList", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			getList(b)
		}
		perObject(b)
	})
	b.Run("DeepCopy", func(b *testing.B) {
		pods := getList(b)
		b.ReportAllocs()
		for b.Loop() {
			pods.DeepCopy()
		}
		perObject(b)
	})
	b.Run("ListerWatcher", func(b *testing.B) {
		l := informer.ListerWatcher(c)
		b.ReportAllocs()
		for b.Loop() {
			object, err := l.ListWithContext(b.Context(), metav1.ListOptions{ResourceVersion: "0"})
			if err != nil || len(object.(*example.PodList).Items) != crowd {
				b.Fatal(err)
			}
		}
		perObject(b)
	})
}

// BenchmarkWatch receives as many events as there are objects, beside the
// cache's own watch, whose objects have to be copied before they can be used.
func BenchmarkWatch(b *testing.B) {
	c := benchCache(b)
	receive := func(b *testing.B, open func(ctx context.Context) (watch.Interface, error), use func(runtime.Object)) {
		b.ReportAllocs()
		for b.Loop() {
			ctx, cancel := context.WithCancel(b.Context())
			w, err := open(ctx)
			if err != nil {
				b.Fatal(err)
			}
			for range crowd {
				use((<-w.ResultChan()).Object)
			}
			w.Stop()
			cancel()
		}
		perObject(b)
	}
	shared := func(ctx context.Context) (watch.Interface, error) {
		return c.Watch(new(cacher.ListEncodings).ShareInitialEvents(ctx), poddata.Prefix, storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
	}
	private := func(ctx context.Context) (watch.Interface, error) {
		return informer.ListerWatcher(c).WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: "0"})
	}
	b.Run("Watch", func(b *testing.B) { receive(b, shared, func(runtime.Object) {}) })
	b.Run("Watch and copy", func(b *testing.B) {
		receive(b, shared, func(object runtime.Object) { object.(runtime.CacheableObject).GetObject() })
	})
	b.Run("ListerWatcher", func(b *testing.B) {
		receive(b, private, func(object runtime.Object) { _ = object.(*example.Pod) })
	})
}
