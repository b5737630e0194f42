// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
)

// reflected is a reflector that runs, and the store that it fills.
type reflected struct {
	*cache.Reflector
	recorder *recorder
	store    *replaceCounter
	ended    chan struct{}
}

// replaceCounter is a store that counts what a reflector replaces as a whole.
type replaceCounter struct {
	cache.Store
	mu struct {
		sync.Mutex
		replaced [][]any
	}
}

// Replace implements cache.ReflectorStore.
func (s *replaceCounter) Replace(items []any, resourceVersion string) error {
	s.mu.Lock()
	s.mu.replaced = append(s.mu.replaced, slices.Clone(items))
	s.mu.Unlock()
	return s.Store.Replace(items, resourceVersion)
}

// replaced gives the items of each Replace.
func (s *replaceCounter) replaced() [][]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.replaced)
}

// quickRetries lets a reflector try again at once, where client-go waits for up to
// 30 s.
func quickRetries() *wait.Backoff {
	return &wait.Backoff{Duration: pollInterval, Factor: 1, Steps: 1, Cap: time.Second}
}

// startReflector runs a reflector of r until the test ends. configure may change it before.
func startReflector(t *testing.T, via transport, r *recorder, options cache.ReflectorOptions, configure ...func(*cache.Reflector)) *reflected {
	t.Helper()
	if options.Backoff == nil {
		options.Backoff = quickRetries()
	}
	store := &replaceCounter{Store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	f := &reflected{
		Reflector: cache.NewReflectorWithOptions(r, via.example(), store, options),
		recorder:  r, store: store, ended: make(chan struct{}),
	}
	for _, change := range configure {
		change(f.Reflector)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(f.ended)
		f.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-f.ended
	})
	return f
}

// requireListed wants as many lists, streamed or not, as given.
func (f *reflected) requireListed(t *testing.T, n int) {
	t.Helper()
	require.Len(t, f.recorder.lists(), n, "requests: %+v", f.recorder.requests())
}

// warmUp waits until the watch has brought an event. One that ends sooner, in its
// first second, makes client-go list again.
func (f *reflected) warmUp(t *testing.T, fx *fixture, d devices) {
	t.Helper()
	fx.requireEqual(t, f.store, d.namespace)
	d.create(t, "warm")
	fx.requireEqual(t, f.store, d.namespace)
}

// requireRelisted waits until more lists than that were asked for, and wants the
// reason to have been a 410.
func requireRelisted(t *testing.T, r *recorder, lists int) {
	t.Helper()
	eventually(t, "there is no relist", func(context.Context) error {
		if n := len(r.lists()); n == lists {
			return fmt.Errorf("it was listed %d times", n)
		}
		return nil
	})
	require.True(t, slices.ContainsFunc(r.failures(), apierrors.IsResourceExpired),
		"the watch was not told 410: %v; requests: %+v", r.failures(), r.requests())
}

// bothModes runs a test with a reflector that lists and then watches, and with one
// that streams the list.
func bothModes(t *testing.T, f func(t *testing.T, fx *fixture, via transport, plain bool)) {
	t.Helper()
	for name, plain := range map[string]bool{"list and watch": true, "watch-list": false} {
		t.Run(name, func(t *testing.T) {
			bothTransports(t, func(t *testing.T, fx *fixture, via transport) { f(t, fx, via, plain) })
		})
	}
}

// TestReflector holds the contract of cache.Reflector.
func TestReflector(t *testing.T) {
	t.Run("lists and then watches", func(t *testing.T) { bothTransports(t, testListThenWatch) })
	t.Run("streams the list", func(t *testing.T) { bothTransports(t, testWatchList) })
	t.Run("asks for a page of the first list and gets all of it", func(t *testing.T) { bothTransports(t, testPaging) })
	t.Run("resumes without relist", func(t *testing.T) { bothModes(t, testResume) })
	t.Run("relists after 410", func(t *testing.T) { bothModes(t, testExpired) })
	t.Run("follows bookmarks when idle", func(t *testing.T) { bothTransports(t, testBookmarks) })
	t.Run("retries internal errors for MaxInternalErrorRetryDuration", func(t *testing.T) { bothTransports(t, testInternalErrors) })
}

// startFollowed starts a reflector on five devices, and lets it follow three changes.
func startFollowed(t *testing.T, fx *fixture, via transport, plain bool) *reflected {
	t.Helper()
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	d.createMany(t, "early", 5)
	r := via.listerWatcher(t, fx, ns, nil)
	r.plain = plain
	f := startReflector(t, via, r, cache.ReflectorOptions{})
	fx.requireEqual(t, f.store, ns)
	d.update(t, "early-001", "someone")
	d.delete(t, "early-002")
	d.create(t, "late")
	fx.requireEqual(t, f.store, ns)
	return f
}

func testListThenWatch(t *testing.T, fx *fixture, via transport) {
	f := startFollowed(t, fx, via, true)
	requests := f.recorder.requests()
	require.Len(t, requests, 2)
	require.False(t, requests[0].watch)
	require.Equal(t, "0", requests[0].options.ResourceVersion, "the first list may be of any version")
	require.True(t, requests[1].watch)
	require.Nil(t, requests[1].options.SendInitialEvents)
	require.True(t, requests[1].options.AllowWatchBookmarks)
	require.Len(t, f.store.replaced(), 1)
}

func testWatchList(t *testing.T, fx *fixture, via transport) {
	f := startFollowed(t, fx, via, false)
	// One request brings the list and all that came later.
	requests := f.recorder.requests()
	require.Len(t, requests, 1)
	require.True(t, requests[0].streamed())
	require.Equal(t, metav1.ResourceVersionMatchNotOlderThan, requests[0].options.ResourceVersionMatch)
	// The store gets the list as a whole, when it is complete.
	require.Len(t, f.store.replaced(), 1)
	require.Len(t, f.store.replaced()[0], 5)
}

func testPaging(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	fx.settle(t, d.createMany(t, "paged", 10)[9].ResourceVersion)
	r := via.listerWatcher(t, fx, ns, nil)
	r.plain = true
	// Objects written after the list are not in it, and come afterwards.
	var between sync.Once
	r.afterList = func() {
		between.Do(func() {
			d.delete(t, "paged-009")
			d.create(t, "unpaged")
		})
	}
	f := startReflector(t, via, r, cache.ReflectorOptions{}, func(f *cache.Reflector) { f.WatchListPageSize = 3 })
	fx.requireEqual(t, f.store, ns)

	requests := r.requests()
	require.Len(t, requests, 2, "%+v", requests)
	list := requests[0]
	require.False(t, list.watch)
	require.EqualValues(t, 3, list.options.Limit)
	require.Equal(t, "0", list.options.ResourceVersion)
	require.Equal(t, 10, list.items, "the limit is ignored at resourceVersion 0: see decision 0003")
	require.Len(t, f.store.replaced(), 1)
	require.Len(t, f.store.replaced()[0], 10)
	f.requireListed(t, 1)
}

func testResume(t *testing.T, fx *fixture, via transport, plain bool) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	d.createMany(t, "early", 3)
	r := via.listerWatcher(t, fx, ns, nil)
	r.plain = plain
	f := startReflector(t, via, r, cache.ReflectorOptions{})
	f.warmUp(t, fx, d)
	resumed, refusals := len(r.resumes()), r.refusals()

	reconnect := via.disconnect(t, fx, r)
	// A reflector tells the store of an event, and then notes the event's version.
	eventually(t, "the reflector does not watch again", func(context.Context) error {
		if r.refusals() == refusals {
			return errors.New("no request was refused")
		}
		return nil
	})
	known := f.LastSyncResourceVersion()
	d.create(t, "missed")
	d.update(t, "early-001", "someone")
	d.delete(t, "early-002")
	reconnect()
	fx.requireEqual(t, f.store, ns)

	f.requireListed(t, 1)
	require.Len(t, r.resumes(), resumed+1)
	require.Equal(t, known, r.resumes()[resumed].options.ResourceVersion, "where the broken watch had come to")
}

func testExpired(t *testing.T, fx *fixture, via transport, plain bool) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	d.createMany(t, "early", 3)
	r := via.listerWatcher(t, fx, ns, nil)
	r.plain = plain
	f := startReflector(t, via, r, cache.ReflectorOptions{})
	f.warmUp(t, fx, d)

	reconnect := via.disconnect(t, fx, r)
	d.delete(t, "early-001")
	d.update(t, "early-002", "someone")
	fx.flushWindow(t, f.LastSyncResourceVersion())
	d.create(t, "missed")
	reconnect()
	fx.requireEqual(t, f.store, ns)

	requireRelisted(t, r, 1)
	f.requireListed(t, 2)
	require.Len(t, f.store.replaced(), 2)
}

// testBookmarks: what is written in another namespace moves the resourceVersion of
// one that is idle, so that it can still be resumed later. Both modes wait together.
func testBookmarks(t *testing.T, fx *fixture, via transport) {
	ns, elsewhere := fx.newNamespace(t), fx.newNamespace(t)
	fx.writer(t, ns).create(t, "idle")
	var idle []*reflected
	for _, plain := range []bool{true, false} {
		r := via.listerWatcher(t, fx, ns, nil)
		r.plain = plain
		f := startReflector(t, via, r, cache.ReflectorOptions{})
		fx.requireEqual(t, f.store, ns)
		awaitList(t, f) // whose version a reflector notes after its store has it
		idle = append(idle, f)
	}
	fx.flushWindow(t, idle[0].LastSyncResourceVersion())
	written := fx.writer(t, elsewhere).create(t, "busy").ResourceVersion
	for _, f := range idle {
		eventually(t, "no bookmark comes", func(context.Context) error {
			if last := f.LastSyncResourceVersion(); number(t, last) < number(t, written) {
				return fmt.Errorf("LastSyncResourceVersion is %s, and %s was written elsewhere", last, written)
			}
			return nil
		})
	}
	// The window has forgotten what was before the bookmarks.
	for _, f := range idle {
		require.NotZero(t, f.recorder.drop())
	}
	fx.writer(t, ns).create(t, "missed")
	for _, f := range idle {
		fx.requireEqual(t, f.store, ns)
		f.requireListed(t, 1)
		require.Empty(t, f.recorder.failures())
		resumes := f.recorder.resumes()
		require.GreaterOrEqual(t, number(t, resumes[len(resumes)-1].options.ResourceVersion), number(t, written))
	}
}

// retryDuration is for how long the tests' reflectors retry internal errors.
const retryDuration = 10 * time.Second

// internalError is what a watch ends with when the server could not go on.
func internalError() watch.Event {
	return watch.Event{Type: watch.Error, Object: &apierrors.NewInternalError(errors.New("injected")).ErrStatus}
}

// testInternalErrors: until the duration is over the watch is resumed, then the
// reflector lists again. The time is the test's.
func testInternalErrors(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	d.create(t, "early")
	r := via.listerWatcher(t, fx, ns, nil)
	clock := clocktesting.NewFakeClock(time.Now())
	f := startReflector(t, via, r, cache.ReflectorOptions{Clock: clock}, func(f *cache.Reflector) {
		f.MaxInternalErrorRetryDuration = retryDuration
	})
	fx.requireEqual(t, f.store, ns)
	awaitList(t, f)

	for i := range 3 {
		known := f.LastSyncResourceVersion()
		require.Equal(t, 1, r.inject(internalError()))
		d.create(t, fmt.Sprintf("late-%d", i))
		fx.requireEqual(t, f.store, ns)
		f.requireListed(t, 1)
		require.Len(t, r.resumes(), i+1)
		require.GreaterOrEqual(t, number(t, r.resumes()[i].options.ResourceVersion), number(t, known))
	}

	clock.Step(retryDuration + time.Second)
	require.Equal(t, 1, r.inject(internalError()))
	eventually(t, "the reflector does not list", func(context.Context) error {
		clock.Step(time.Second) // its pause before it tries again
		if n := len(r.lists()); n != 2 {
			return fmt.Errorf("it has listed %d times", n)
		}
		return nil
	})
	d.create(t, "last")
	fx.requireEqual(t, f.store, ns)
	require.Len(t, r.resumes(), 3)
}
