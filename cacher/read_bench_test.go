// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

func corePod(i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("pod%05d", i), Namespace: fmt.Sprintf("ns%02d", i%100),
			Labels: map[string]string{"app": fmt.Sprintf("app%02d", i/100%100)},
		},
		Spec: corev1.PodSpec{NodeName: fmt.Sprintf("n%03d", i%400)},
	}
}

func coreAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod := obj.(*corev1.Pod)
	return pod.Labels, fields.Set{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName,
		"spec.restartPolicy": "", "spec.schedulerName": "", "spec.serviceAccountName": "", "spec.hostNetwork": "false",
		"status.phase": "", "status.podIP": "",
	}, nil
}

// coreCrowd is a cache of 20,000 corev1.Pods, whose struct is about 1.2 KB.
func coreCrowd(b *testing.B, change ...func(*cacher.Config)) (*cacher.Cacher, []*corev1.Pod) {
	b.Helper()
	store := memstore.New(poddata.Prefix, func() runtime.Object { return &corev1.Pod{} })
	var pods []*corev1.Pod
	for i := range crowd {
		pod := corePod(i)
		pods = append(pods, pod)
		store.Put(fmt.Sprintf("%s%s/%s", poddata.Prefix, pod.Namespace, pod.Name), pod)
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		b.Fatal(err)
	}
	// As a list brings them, so that copies read memory in the same order.
	slices.SortFunc(pods, func(p, q *corev1.Pod) int {
		return cmp.Or(strings.Compare(p.Namespace, q.Namespace), strings.Compare(p.Name, q.Name))
	})
	return start(b, store, append([]func(*cacher.Config){func(c *cacher.Config) {
		c.NewFunc = func() runtime.Object { return &corev1.Pod{} }
		c.NewListFunc = func() runtime.Object { return &corev1.PodList{} }
		c.GetAttrsFunc = coreAttrs
		c.Codec = serializer.NewCodecFactory(scheme).LegacyCodec(corev1.SchemeGroupVersion)
	}}, change...)...), pods
}

// BenchmarkListAll is a LIST of everything, beside the least that it can cost:
// to make the slice and to copy the structs.
func BenchmarkListAll(b *testing.B) {
	c, pods := coreCrowd(b)
	b.Run("cache", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			list := &corev1.PodList{}
			if err := c.GetList(b.Context(), poddata.Prefix, everything("0"), list); err != nil || len(list.Items) != crowd {
				b.Fatal(len(list.Items), err)
			}
		}
	})
	b.Run("floor", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			list := &corev1.PodList{Items: make([]corev1.Pod, len(pods))}
			for i, pod := range pods {
				list.Items[i] = *pod
			}
			if len(list.Items) != crowd {
				b.Fatal()
			}
		}
	})
}

func BenchmarkGet(b *testing.B) {
	c, _ := coreCrowd(b)
	for _, rv := range []string{"0", ""} {
		b.Run(fmt.Sprintf("rv=%q", rv), func(b *testing.B) {
			b.ReportAllocs()
			pod := &corev1.Pod{}
			for b.Loop() {
				if err := c.Get(b.Context(), "/pods/ns07/pod00007", storage.GetOptions{ResourceVersion: rv}, pod); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkListSelected(b *testing.B) {
	plain, _ := coreCrowd(b)
	indexed, _ := coreCrowd(b, withLabels("app"))
	for _, bm := range []struct {
		name, key, label string
		c                *cacher.Cacher
		want             int
	}{
		{"label of 1% without an index", "/pods/", "app=app07", plain, 200},
		{"label of 1% with an index", "/pods/", "app=app07", indexed, 200},
		{"set of 2% with an index", "/pods/", "app in (app07,app08)", indexed, 400},
		{"one namespace of 100", "/pods/ns07/", "", plain, 200},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			opts := everything("0")
			opts.Predicate = poddata.Predicate(bm.label, "")
			for b.Loop() {
				list := &corev1.PodList{}
				if err := bm.c.GetList(b.Context(), bm.key, opts, list); err != nil || len(list.Items) != bm.want {
					b.Fatal(len(list.Items), err)
				}
			}
		})
	}
}

// BenchmarkWalk lists everything in pages of 500.
func BenchmarkWalk(b *testing.B) {
	c, _ := coreCrowd(b)
	b.ReportAllocs()
	for b.Loop() {
		opts := limited(everything(""), 500)
		n := 0
		for {
			list := &corev1.PodList{}
			if err := c.GetList(b.Context(), poddata.Prefix, opts, list); err != nil {
				b.Fatal(err)
			}
			n += len(list.Items)
			if opts.Predicate.Continue = list.Continue; list.Continue == "" {
				break
			}
		}
		if n != crowd {
			b.Fatal(n)
		}
	}
}

// BenchmarkListUnstructured is beside a deep copy of each item, and beside no
// copy at all, which would share the items' maps with the cache.
func BenchmarkListUnstructured(b *testing.B) {
	const n = 2000
	store := memstore.New(poddata.Prefix, newWidget)
	var all []*unstructured.Unstructured
	for i := range n {
		w := widget("ns/" + fmt.Sprintf("w%04d", i))
		all = append(all, w)
		store.Put(fmt.Sprintf("/pods/ns/w%04d", i), w)
	}
	c := start(b, store, ofWidgets)
	b.Run("cache", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			list := &unstructured.UnstructuredList{}
			if err := c.GetList(b.Context(), poddata.Prefix, everything("0"), list); err != nil || len(list.Items) != n {
				b.Fatal(len(list.Items), err)
			}
		}
	})
	for name, copied := range map[string]func(*unstructured.Unstructured) unstructured.Unstructured{
		"deep":   func(u *unstructured.Unstructured) unstructured.Unstructured { return *u.DeepCopy() },
		"shared": func(u *unstructured.Unstructured) unstructured.Unstructured { return *u },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				list := &unstructured.UnstructuredList{Items: make([]unstructured.Unstructured, n)}
				for i, u := range all {
					list.Items[i] = copied(u)
				}
			}
		})
	}
}
