// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// onBoth runs a test with an upstream on either cache.
func onBoth(t *testing.T, test func(t *testing.T, a *api)) {
	for _, ours := range []bool{false, true} {
		t.Run(map[bool]string{false: "shipped", true: "ours"}[ours], func(t *testing.T) { test(t, serve(t, ours)) })
	}
}

// move makes a revision that no pod has.
func (a *api) move(t testing.TB) uint64 {
	t.Helper()
	put, err := a.etcd.Put(t.Context(), "/unrelated", "")
	require.NoError(t, err)
	return uint64(put.Header.Revision)
}

func list(ctx context.Context, c storage.Interface, rv string) (*example.PodList, error) {
	out := &example.PodList{}
	return out, c.GetList(ctx, "/pods/", storage.ListOptions{Recursive: true, ResourceVersion: rv, Predicate: storage.Everything}, out)
}

// within returns a context that ends with the test's patience.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Consistent lists of a quiet resource are served from the cache, and many at once cost the
// upstream a few small requests.
func TestConsistentLists(t *testing.T) {
	onBoth(t, func(t *testing.T, a *api) {
		s := a.store(t)
		create(t, s, "a/x")
		c := cache(t, s)
		for range 2 {
			moved := a.move(t)
			a.requests()
			var readers sync.WaitGroup
			errs := make(chan error, 200)
			for range 200 {
				readers.Go(func() {
					got, err := list(within(t), c, "")
					if err == nil && (len(got.Items) != 1 || rvOfList(got) < moved) {
						err = fmt.Errorf("%d pods at %s, want one at %d or later", len(got.Items), got.ResourceVersion, moved)
					}
					if err != nil {
						errs <- err
					}
				})
			}
			readers.Wait()
			close(errs)
			require.NoError(t, <-errs)
			requests := a.requests()
			require.LessOrEqual(t, len(requests), 20, "%q", requests)
			for _, r := range requests {
				require.True(t, strings.Contains(r, "limit=1&") || strings.HasSuffix(r, "limit=1") || strings.Contains(r, "timeoutSeconds=3"), r)
			}
		}
		// The list has the direct write, whatever the cache knew before.
		for i := range 5 {
			writer := a.store(t)
			created := create(t, writer, fmt.Sprintf("b/%d", i))
			got, err := list(within(t), c, "")
			require.NoError(t, err)
			require.Len(t, got.Items, 2+i)
			require.GreaterOrEqual(t, rvOfList(got), rvOf(t, created))
		}
	})
}

func rvOfList(l *example.PodList) uint64 {
	rv, _ := strconv.ParseUint(l.ResourceVersion, 10, 64)
	return rv
}

// A change is complete at once, and not with the next one, so that reads may see it: nothing
// needs to be asked.
func TestEventsAreComplete(t *testing.T) {
	onBoth(t, func(t *testing.T, a *api) {
		s := a.store(t)
		at := create(t, s, "a/x").ResourceVersion
		w, err := s.Watch(within(t), "/pods/", storage.ListOptions{ResourceVersion: at, Recursive: true, Predicate: storage.Everything, ProgressNotify: true})
		require.NoError(t, err)
		defer w.Stop()
		a.requests()
		for i := range 3 {
			created := create(t, s, fmt.Sprintf("a/%d", i))
			for _, want := range []watch.EventType{watch.Added, watch.Bookmark} {
				event := <-w.ResultChan()
				require.Equal(t, want, event.Type)
				require.Equal(t, rvOf(t, created), rvOf(t, event.Object))
			}
		}
		for _, r := range a.requests() {
			require.NotContains(t, r, "GET")
		}
		c := cache(t, s)
		created := create(t, s, "a/last")
		got, err := list(within(t), c, created.ResourceVersion)
		require.NoError(t, err)
		require.Len(t, got.Items, 5)
	})
}

// gate is a transport that holds back the first watch without a timeout of its own.
type gate struct {
	http.RoundTripper
	open <-chan struct{}
	once *sync.Once
}

func (g gate) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := g.RoundTripper.RoundTrip(r)
	if q := r.URL.Query(); err == nil && q.Has("watch") && !q.Has("timeoutSeconds") {
		g.once.Do(func() { response.Body = gatedBody{response.Body, g.open} })
	}
	return response, err
}

type gatedBody struct {
	io.ReadCloser
	open <-chan struct{}
}

func (b gatedBody) Read(p []byte) (int, error) {
	<-b.open
	return b.ReadCloser.Read(p)
}

// A proof that finds an event waits for the cache's own watch to bring it.
func TestProofWaitsForTheWatch(t *testing.T) {
	a := serve(t, false)
	open := make(chan struct{})
	release := sync.OnceFunc(func() { close(open) })
	defer release()
	s := a.store(t, func(c *Config) {
		c.REST.WrapTransport = func(t http.RoundTripper) http.RoundTripper { return gate{t, open, &sync.Once{}} }
	})
	create(t, s, "a/x")
	everything := storage.ListOptions{Recursive: true, Predicate: storage.Everything, ProgressNotify: true}
	rv, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	everything.ResourceVersion = strconv.FormatUint(rv, 10)
	w, err := s.Watch(within(t), "/pods/", everything)
	require.NoError(t, err)
	defer w.Stop()
	created := create(t, s, "a/y")
	moved := a.move(t)
	_, err = s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.RequestWatchProgress(t.Context()))
	until(t, "a proof holds", func() bool { return heldProofs(s) == 1 })
	select {
	case event := <-w.ResultChan():
		require.Fail(t, "too early", "%v", event)
	default:
	}
	release()
	event := <-w.ResultChan()
	require.Equal(t, watch.Added, event.Type)
	require.Equal(t, rvOf(t, created), rvOf(t, event.Object))
	for rvOf(t, event.Object) < moved {
		event = <-w.ResultChan()
		require.Equal(t, watch.Bookmark, event.Type)
	}
}

func heldProofs(s *Store) float64 {
	return testutil.ToFloat64(s.metrics.proofs.WithLabelValues(proofHeld))
}

func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, patience, 10*time.Millisecond, what)
}

// Reads of an upstream that proves nothing are its own to answer, which is counted, and it
// is tried again.
func TestUnproven(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"refuses": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadRequest) },
		"is behind": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"resourceVersion":"1"}}}`))
		},
		"sends no bookmark": func(http.ResponseWriter, *http.Request) {},
	} {
		t.Run(name, func(t *testing.T) {
			a := serve(t, false)
			registry := prometheus.NewRegistry()
			s := a.store(t, func(c *Config) { c.Registerer = registry })
			create(t, s, "a/x")
			c := cache(t, s)
			a.intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("timeoutSeconds") != "3" {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				answer(w, r)
				return true
			})
			until(t, "the upstream counts as unable", func() bool {
				moved := a.move(t)
				got, err := list(within(t), c, "")
				require.NoError(t, err)
				require.GreaterOrEqual(t, rvOfList(got), moved)
				return !s.WatchProgress()
			})
			a.requests()
			got, err := list(within(t), c, "")
			require.NoError(t, err)
			require.Len(t, got.Items, 1)
			require.Contains(t, a.requests(), "GET /apis/example.apiserver.k8s.io/v1/pods")
			require.NotZero(t, testutil.ToFloat64(s.metrics.passedReads))
			require.GreaterOrEqual(t, testutil.ToFloat64(s.metrics.proofs.WithLabelValues(proofFailed)), 2.0)

			a.intercept(nil)
			until(t, "the upstream proves again", func() bool {
				a.move(t) // where nothing moves, nothing can be proved
				s.mu.Lock()
				s.mu.next = time.Time{}
				s.mu.Unlock()
				return s.WatchProgress()
			})
			moved := a.move(t)
			got, err = list(within(t), c, "")
			require.NoError(t, err)
			require.GreaterOrEqual(t, rvOfList(got), moved)
		})
	}
}

// Objects of one lease are deleted in one revision: no bookmark comes between them.
func TestDeletionsByALease(t *testing.T) {
	const leased = 8 // the shipped cacher ends a watch that has ten events to read
	onBoth(t, func(t *testing.T, a *api) {
		s := a.store(t, func(c *Config) { c.Expires = true })
		lease, err := a.etcd.Grant(t.Context(), 3600)
		require.NoError(t, err)
		for i := range leased {
			create(t, s, fmt.Sprintf("a/%d", i))
		}
		stored, err := a.etcd.Get(t.Context(), "/registry", clientv3.WithPrefix())
		require.NoError(t, err)
		for _, kv := range stored.Kvs {
			_, err := a.etcd.Put(t.Context(), string(kv.Key), string(kv.Value), clientv3.WithLease(lease.ID))
			require.NoError(t, err)
		}
		c := cache(t, s)
		before, err := list(within(t), c, "")
		require.NoError(t, err)
		require.Len(t, before.Items, leased)
		w, err := s.Watch(within(t), "/pods/", storage.ListOptions{ResourceVersion: before.ResourceVersion, Recursive: true, Predicate: storage.Everything, ProgressNotify: true})
		require.NoError(t, err)
		defer w.Stop()
		_, err = a.etcd.Revoke(t.Context(), lease.ID)
		require.NoError(t, err)
		at := uint64(0)
		for deleted := 0; deleted < leased; {
			event := <-w.ResultChan()
			if event.Type == watch.Bookmark {
				require.Less(t, rvOf(t, event.Object), at+1)
				require.Zero(t, deleted, "a bookmark between deletions of one revision")
				continue
			}
			require.Equal(t, watch.Deleted, event.Type)
			at = rvOf(t, event.Object)
			deleted++
		}
		a.move(t) // in a cluster something always does
		until(t, "the last deletion is complete", func() bool {
			require.NoError(t, s.RequestWatchProgress(t.Context()))
			select {
			case event := <-w.ResultChan():
				return event.Type == watch.Bookmark && rvOf(t, event.Object) >= at
			default:
				return false
			}
		})
		got, err := list(within(t), c, "")
		require.NoError(t, err)
		require.Empty(t, got.Items)
	})
}

// A cache whose connection is cut resumes its watch, lists nothing, and its watchers notice
// nothing.
func TestConnectionIsCut(t *testing.T) {
	a := serve(t, false)
	s := a.store(t)
	created := create(t, s, "a/0")
	c := cache(t, s, func(c *cacher.Config) { c.DisableSizeEstimation = true })
	w, err := c.Watch(within(t), "/pods/", storage.ListOptions{ResourceVersion: created.ResourceVersion, Recursive: true, Predicate: storage.Everything})
	require.NoError(t, err)
	defer w.Stop()
	a.requests()
	for i := 1; i < 5; i++ {
		a.server.CloseClientConnections()
		want, name := &example.Pod{}, fmt.Sprintf("a/%d", i)
		until(t, "the pod is created", func() bool { // the connection may be the one that was cut
			return s.Create(t.Context(), "/pods/"+name, poddata.Pod(name), want, 0) == nil
		})
		event := <-w.ResultChan()
		require.Equal(t, watch.Added, event.Type)
		require.Equal(t, rvOf(t, want), rvOf(t, objectOf(event)))
	}
	for _, r := range a.requests() {
		if strings.HasPrefix(r, "GET") {
			require.True(t, strings.Contains(r, "limit=1") || strings.Contains(r, "watch=true"), r)
		}
	}
}

// A watch whose client reads nothing ends with its context, and so does a request that
// gets no answer.
func TestNobodyReads(t *testing.T) {
	a := serve(t, false)
	s := a.store(t)
	for i := range 10 {
		create(t, s, fmt.Sprintf("a/%d", i))
	}
	true := true
	ctx, cancel := context.WithCancel(t.Context())
	w, err := s.Watch(ctx, "/pods/", storage.ListOptions{SendInitialEvents: &true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, Recursive: true, Predicate: storage.Everything})
	require.NoError(t, err)
	cancel()
	for range w.ResultChan() {
	}
	stuck := make(chan struct{})
	defer close(stuck)
	a.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-r.Context().Done():
		case <-stuck:
		}
		return true
	})
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.GetCurrentResourceVersion(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = s.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: "1", Recursive: true, Predicate: storage.Everything})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// A watch that is asked how far it is says so, whether anything has happened since or not.
func TestProgressIsAnswered(t *testing.T) {
	onBoth(t, func(t *testing.T, a *api) {
		s := a.store(t)
		created := create(t, s, "a/x")
		w, err := s.Watch(within(t), "/pods/", storage.ListOptions{ResourceVersion: created.ResourceVersion, Recursive: true, Predicate: storage.Everything, ProgressNotify: true})
		require.NoError(t, err)
		defer w.Stop()
		for _, want := range []uint64{rvOf(t, created), a.move(t)} {
			until(t, "a bookmark", func() bool {
				require.NoError(t, s.RequestWatchProgress(t.Context()))
				select {
				case event := <-w.ResultChan():
					return event.Type == watch.Bookmark && rvOf(t, event.Object) >= want
				default:
					return false
				}
			})
		}
	})
}

func objectOf(event watch.Event) runtime.Object {
	if shared, ok := event.Object.(runtime.CacheableObject); ok {
		return shared.GetObject()
	}
	return event.Object
}
