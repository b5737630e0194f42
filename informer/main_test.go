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

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
	"github.com/kube-watchcache/watchcache/internal/cachetest"
	"github.com/kube-watchcache/watchcache/internal/memstore"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// The fixtures of package cachetest, by the short names that tests know them by.
const patience = cachetest.Patience

var (
	newStore = cachetest.NewStore
	put      = cachetest.Put
	open     = cachetest.Open
	start    = cachetest.Start
	until    = cachetest.Until
	name     = cachetest.Name
	line     = cachetest.Line
)

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

// elapse lets virtual time pass and waits until all goroutines are blocked; for
// use in a bubble only.
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

// listed is a list as "ns/name ns/name@rv of the list".
func listed(t testing.TB, object runtime.Object) string {
	t.Helper()
	list, err := meta.ListAccessor(object)
	require.NoError(t, err)
	items, err := meta.ExtractList(object)
	require.NoError(t, err)
	var names []string
	for _, item := range items {
		names = append(names, name(item))
	}
	return strings.Join(names, " ") + "@" + list.GetResourceVersion()
}

// list lists with the options, of which the resourceVersion is "" unless set.
func list(t testing.TB, l *informer.ListWatch, options metav1.ListOptions) string {
	t.Helper()
	object, err := l.ListWithContext(t.Context(), options)
	require.NoError(t, err)
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
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	return &watching{Interface: w, t: t}
}

func (w *watching) next() watch.Event {
	w.t.Helper()
	select {
	case event := <-w.ResultChan():
		return event
	case <-time.After(patience):
		require.FailNow(w.t, "nothing comes")
		return watch.Event{}
	}
}

func (w *watching) expect(want ...string) {
	w.t.Helper()
	for _, want := range want {
		require.Equal(w.t, want, line(w.next()))
	}
}

// expectRest takes the events that are there when all goroutines are blocked,
// in a bubble.
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
	require.Equal(w.t, append([]string{}, want...), got)
}

// stored returns the content of an informer's store, as "ns/name@rv
// ns/name@rv".
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

// counted counts the requests to a ListWatch.
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

// note records a request and its error.
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
