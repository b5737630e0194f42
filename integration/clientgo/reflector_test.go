// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
)

// reflected is a reflector that runs, and the store that it fills.
type reflected struct {
	*cache.Reflector
	recorder *recorder
	store    cache.Store
}

// quickRetries lets a reflector try again at once, where client-go waits for up to
// 30 s.
func quickRetries() *wait.Backoff {
	return &wait.Backoff{Duration: pollInterval, Factor: 1, Steps: 1, Cap: time.Second}
}

// startReflector runs a reflector of a namespace until the test ends: one that lists and
// then watches if it is plain, else one that streams the list.
func startReflector(t *testing.T, fx *fixture, via transport, namespace string, plain bool) *reflected {
	t.Helper()
	r := via.listerWatcher(t, fx, namespace)
	r.plain = plain
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	f := &reflected{
		Reflector: cache.NewReflectorWithOptions(r, via.example(), store, cache.ReflectorOptions{Backoff: quickRetries()}),
		recorder:  r, store: store,
	}
	runs(t, f.RunWithContext)
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

// awaitList waits until a reflector has listed: later writes come as events.
func awaitList(t *testing.T, last func() string) {
	t.Helper()
	eventually(t, "nothing is listed", func(context.Context) error {
		if last() == "" {
			return errors.New("not yet")
		}
		return nil
	})
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
func bothModes(t *testing.T, fx *fixture, f func(t *testing.T, fx *fixture, via transport, plain bool)) {
	t.Helper()
	for name, plain := range map[string]bool{"list and watch": true, "watch-list": false} {
		t.Run(name, func(t *testing.T) {
			bothTransports(t, fx, func(t *testing.T, fx *fixture, via transport) { f(t, fx, via, plain) })
		})
	}
}

// TestReflector holds the contract of cache.Reflector.
func TestReflector(t *testing.T) {
	fx := newFixture(t)
	t.Run("lists once", func(t *testing.T) { bothModes(t, fx, testList) })
	t.Run("resumes without relist", func(t *testing.T) { bothModes(t, fx, testResume) })
	t.Run("relists after 410", func(t *testing.T) { bothModes(t, fx, testExpired) })
	t.Run("follows bookmarks when idle", func(t *testing.T) { bothTransports(t, fx, testBookmarks) })
}

func testList(t *testing.T, fx *fixture, via transport, plain bool) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	d.create(t, "early")
	f := startReflector(t, fx, via, ns, plain)
	f.warmUp(t, fx, d)
	d.delete(t, "early")
	fx.requireEqual(t, f.store, ns)
	requests := f.recorder.requests()
	if !plain {
		require.Len(t, requests, 1, "one request brings the list and all that came later")
		require.True(t, requests[0].streamed())
		require.Equal(t, metav1.ResourceVersionMatchNotOlderThan, requests[0].options.ResourceVersionMatch)
		return
	}
	require.Len(t, requests, 2)
	require.False(t, requests[0].watch)
	require.Equal(t, "0", requests[0].options.ResourceVersion, "the first list may be of any version")
	require.True(t, requests[1].watch)
	require.Nil(t, requests[1].options.SendInitialEvents)
	require.True(t, requests[1].options.AllowWatchBookmarks)
}

func testResume(t *testing.T, fx *fixture, via transport, plain bool) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	d.create(t, "changed")
	d.create(t, "deleted")
	f := startReflector(t, fx, via, ns, plain)
	r := f.recorder
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
	d.update(t, "changed", "someone")
	d.delete(t, "deleted")
	reconnect()
	fx.requireEqual(t, f.store, ns)

	f.requireListed(t, 1)
	require.Len(t, r.resumes(), resumed+1)
	require.Equal(t, known, r.resumes()[resumed].options.ResourceVersion, "where the broken watch had come to")
}

func testExpired(t *testing.T, fx *fixture, via transport, plain bool) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	d.create(t, "changed")
	d.create(t, "deleted")
	f := startReflector(t, fx, via, ns, plain)
	r := f.recorder
	f.warmUp(t, fx, d)

	reconnect := via.disconnect(t, fx, r)
	d.delete(t, "deleted")
	d.update(t, "changed", "someone")
	fx.flushWindow(t, f.LastSyncResourceVersion())
	d.create(t, "missed")
	reconnect()
	fx.requireEqual(t, f.store, ns)

	requireRelisted(t, r, 1)
	f.requireListed(t, 2)
}

// testBookmarks: what is written in another namespace moves the resourceVersion of
// one that is idle, so that it can still be resumed later. Both modes wait together.
func testBookmarks(t *testing.T, fx *fixture, via transport) {
	ns, elsewhere := fx.newNamespace(t), fx.newNamespace(t)
	fx.writer(t, ns).create(t, "idle")
	var idle []*reflected
	for _, plain := range []bool{true, false} {
		f := startReflector(t, fx, via, ns, plain)
		fx.requireEqual(t, f.store, ns)
		awaitList(t, f.LastSyncResourceVersion) // whose version a reflector notes after its store has it
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
