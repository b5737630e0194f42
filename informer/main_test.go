// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

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

// open makes a cache over the store; it need not become ready.
func open(t testing.TB, store storage.Interface, change ...func(*cacher.Config)) *cacher.Cacher {
	t.Helper()
	config := cacher.Config{
		Storage: store, Versioner: storage.APIObjectVersioner{}, GroupResource: poddata.Resource,
		ResourcePrefix: poddata.Prefix, KeyFunc: poddata.Key, GetAttrsFunc: poddata.Attrs,
		NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: poddata.Codec(),
	}
	for _, c := range change {
		c(&config)
	}
	c, err := cacher.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// start makes a cache and waits until it is ready.
func start(t testing.TB, store storage.Interface, change ...func(*cacher.Config)) *cacher.Cacher {
	t.Helper()
	c := open(t, store, change...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	return c
}

// inBubble runs f with a cache in virtual time.
func inBubble(t *testing.T, f func(*testing.T, *memstore.Store, *cacher.Cacher), change ...func(*cacher.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		c := start(t, store, change...)
		f(t, store, c)
		c.Stop()
	})
}

// elapse lets virtual time pass and everything come to rest; it is called in a
// bubble only.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// run runs an informer or a reflector; stop ends it and waits for its end.
func run(t testing.TB, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return stop
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

// listed is a list as "ns/name ns/name@rv of the list".
func listed(t testing.TB, object runtime.Object) string {
	t.Helper()
	list, err := meta.ListAccessor(object)
	if err != nil {
		t.Fatal(err)
	}
	items, err := meta.ExtractList(object)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, item := range items {
		names = append(names, name(item))
	}
	return strings.Join(names, " ") + "@" + list.GetResourceVersion()
}

func name(object any) string {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err.Error()
	}
	return accessor.GetNamespace() + "/" + accessor.GetName()
}

// list lists with the options, of which the resourceVersion is "" unless set.
func list(t testing.TB, l *informer.ListWatch, options metav1.ListOptions) string {
	t.Helper()
	object, err := l.ListWithContext(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	return listed(t, object)
}

// watching is a watch that is read as short lines: "ADDED ns/name@5".
type watching struct {
	watch.Interface
	t testing.TB
}

func startWatch(t testing.TB, l *informer.ListWatch, options metav1.ListOptions) *watching {
	t.Helper()
	w, err := l.WatchWithContext(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return &watching{Interface: w, t: t}
}

func (w *watching) next() watch.Event {
	w.t.Helper()
	select {
	case event := <-w.ResultChan():
		return event
	case <-time.After(patience):
		w.t.Fatal("nothing comes")
		return watch.Event{}
	}
}

func (w *watching) expect(want ...string) {
	w.t.Helper()
	for _, want := range want {
		if got := line(w.next()); got != want {
			w.t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// expectRest takes what is on its way after everything has come to rest, in a
// bubble.
func (w *watching) expectRest(want ...string) {
	w.t.Helper()
	synctest.Wait()
	got := []string{}
	for more := true; more; {
		select {
		case event := <-w.ResultChan():
			got = append(got, line(event))
			more = event.Type != ""
			synctest.Wait()
		default:
			more = false
		}
	}
	if !slices.Equal(got, append([]string{}, want...)) {
		w.t.Fatalf("got %q, want %q", got, want)
	}
}

// line is an event as text; "closed" is the end of a watch.
func line(event watch.Event) string {
	if event.Type == "" {
		return "closed"
	}
	if status, ok := event.Object.(*metav1.Status); ok {
		return fmt.Sprintf("%s %d %s", event.Type, status.Code, status.Reason)
	}
	accessor, err := meta.Accessor(event.Object)
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
	return fmt.Sprintf("%s %s@%s", event.Type, name(event.Object), accessor.GetResourceVersion())
}

// stored is what an informer's store has, as "ns/name@rv ns/name@rv".
func stored(store cache.Store) string {
	var lines []string
	for _, object := range store.List() {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return err.Error()
		}
		lines = append(lines, name(object)+"@"+accessor.GetResourceVersion())
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

// counted counts the requests of whoever uses a ListWatch.
type counted struct {
	*informer.ListWatch
	// lists makes client-go list, where it would stream the initial state.
	lists bool

	mu   sync.Mutex
	seen []string
	last watch.Interface
}

func (c *counted) IsWatchListSemanticsUnSupported() bool { return c.lists }

func (c *counted) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, err := c.ListWatch.ListWithContext(ctx, o)
	c.note(nil, err, "list@%s limit=%d", o.ResourceVersion, o.Limit)
	return list, err
}

func (c *counted) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	kind := "watch"
	if o.SendInitialEvents != nil {
		kind = "stream"
	}
	w, err := c.ListWatch.WatchWithContext(ctx, o)
	c.note(w, err, "%s@%s", kind, o.ResourceVersion)
	return w, err
}

// note notes a request, and why it has failed.
func (c *counted) note(w watch.Interface, err error, format string, args ...any) {
	request := fmt.Sprintf(format, args...)
	if err != nil {
		request += " " + string(apierrors.ReasonForError(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, request)
	if w != nil {
		c.last = w
	}
}

// List and Watch are the old ways to ask; a Reflector does not use them.
func (c *counted) List(o metav1.ListOptions) (runtime.Object, error) {
	return c.ListWithContext(context.Background(), o)
}

func (c *counted) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return c.WatchWithContext(context.Background(), o)
}

func (c *counted) requests() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.seen)
}

// breakWatch ends the last watch, as a broken connection does.
func (c *counted) breakWatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last.Stop()
}
