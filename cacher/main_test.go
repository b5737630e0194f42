// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func newStore(pods ...*example.Pod) *memstore.Store {
	store := memstore.New(poddata.Prefix, poddata.New)
	for _, pod := range pods {
		put(store, pod)
	}
	return store
}

func put(store *memstore.Store, pod *example.Pod) uint64 {
	key, err := poddata.Key(pod)
	if err != nil {
		panic(err)
	}
	return store.Put(key, pod)
}

func podConfig(store storage.Interface) cacher.Config {
	return cacher.Config{
		Storage: store, Versioner: storage.APIObjectVersioner{}, GroupResource: poddata.Resource,
		ResourcePrefix: poddata.Prefix, KeyFunc: poddata.Key, GetAttrsFunc: poddata.Attrs,
		NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: poddata.Codec(),
	}
}

// start starts a cache over the store and waits until it is ready.
func start(t testing.TB, store storage.Interface, change ...func(*cacher.Config)) *cacher.Cacher {
	t.Helper()
	config := podConfig(store)
	for _, c := range change {
		c(&config)
	}
	c, err := cacher.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	if err := c.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return c
}

// watchPods opens a watch over the key at rv.
func watchPods(t testing.TB, c *cacher.Cacher, key, rv string, change ...func(*storage.ListOptions)) *podWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	opts := storage.ListOptions{ResourceVersion: rv, Predicate: storage.Everything, Recursive: true}
	for _, change := range change {
		change(&opts)
	}
	w, err := c.Watch(ctx, key, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return &podWatch{Interface: w, t: t, cancel: cancel}
}

func selecting(label, field string) func(*storage.ListOptions) {
	return func(o *storage.ListOptions) { o.Predicate = poddata.Predicate(label, field) }
}

func withBookmarks(o *storage.ListOptions) { o.Predicate.AllowWatchBookmarks = true }

func streaming(o *storage.ListOptions) {
	yes := true
	o.SendInitialEvents = &yes
	o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	o.Predicate.AllowWatchBookmarks = true
}

// podWatch reads a watch as short lines: "ADDED ns/name@5".
type podWatch struct {
	watch.Interface
	t      testing.TB
	cancel context.CancelFunc
}

func (w *podWatch) next() string {
	w.t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		if !ok {
			return "closed"
		}
		return line(event)
	case <-time.After(patience):
		w.t.Fatal("nothing comes")
		return ""
	}
}

func (w *podWatch) expect(want ...string) {
	w.t.Helper()
	for _, want := range want {
		if got := w.next(); got != want {
			w.t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// expectClosed skips what is still on its way and wants the end then.
func (w *podWatch) expectClosed() {
	w.t.Helper()
	for w.next() != "closed" {
	}
}

func line(event watch.Event) string {
	if status, ok := event.Object.(*metav1.Status); ok {
		return fmt.Sprintf("%s %d %s", event.Type, status.Code, status.Reason)
	}
	object := event.Object
	if cached, ok := object.(runtime.CacheableObject); ok {
		object = cached.GetObject()
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err.Error()
	}
	if event.Type == watch.Bookmark {
		end := ""
		if accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			end = " end of initial events"
		}
		return fmt.Sprintf("BOOKMARK@%s%s", accessor.GetResourceVersion(), end)
	}
	return fmt.Sprintf("%s %s/%s@%s", event.Type, accessor.GetNamespace(), accessor.GetName(), accessor.GetResourceVersion())
}

// list lists pods as "ns/name ns/name@rv of the list".
func list(t testing.TB, c storage.Interface, key, rv string, change ...func(*storage.ListOptions)) (string, *example.PodList) {
	t.Helper()
	pods := &example.PodList{}
	opts := storage.ListOptions{ResourceVersion: rv, Predicate: storage.Everything, Recursive: true}
	for _, change := range change {
		change(&opts)
	}
	if err := c.GetList(testContext(t), key, opts, pods); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	return strings.Join(names, " ") + "@" + pods.ResourceVersion, pods
}

func expectList(t testing.TB, c storage.Interface, key, rv, want string, change ...func(*storage.ListOptions)) *example.PodList {
	t.Helper()
	got, pods := list(t, c, key, rv, change...)
	if got != want {
		t.Errorf("list %s at %q: got %q, want %q", key, rv, got, want)
	}
	return pods
}

func metaOf(t testing.TB, object runtime.Object) metav1.Object {
	t.Helper()
	accessor, err := meta.Accessor(object)
	if err != nil {
		t.Fatal(err)
	}
	return accessor
}

// until waits for a condition that nothing signals.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("never happens: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func sorted(s []string) []string { slices.Sort(s); return s }

func everything(rv string) storage.ListOptions {
	return storage.ListOptions{ResourceVersion: rv, Predicate: storage.Everything, Recursive: true}
}
