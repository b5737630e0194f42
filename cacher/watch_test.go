// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/internal/keptlists"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// REGRESSIONS 4 and 5: events that come while initial events are sent follow
// them, once each, and none goes backwards.
func TestEventsDuringInitialEvents(t *testing.T) {
	const pods, watchers = 300, 20
	store := newStore()
	for i := range pods {
		put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i)))
	}
	c := start(t, store)
	defer keepWriting(store)()
	var readers sync.WaitGroup
	for range watchers {
		readers.Go(func() {
			w, err := c.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
			if !assert.NoError(t, err) {
				return
			}
			defer w.Stop()
			highest := uint64(0)
			for range pods { // initial events, in the order of keys
				r := &counter{Interface: w}
				r.take(<-w.ResultChan(), true)
				highest = max(highest, r.last)
				if !assert.NoError(t, r.err) {
					return
				}
			}
			// From the version of the snapshot on without a gap: the first
			// event that follows may be any above it, so the highest initial
			// one is the least it can be.
			r := &counter{Interface: w}
			for range 500 {
				r.take(<-w.ResultChan(), true)
				if !assert.NoError(t, r.err, "after initial events up to %d", highest) || !assert.Greater(t, r.last, highest, "the first event after the initial events") {
					return
				}
			}
		})
	}
	readers.Wait()
}

// REGRESSIONS 24: what one watcher does to its object reaches no other.
func TestMutationsDoNotLeak(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "x=y"))
	c := start(t, store)
	vandal, victim := watchPods(t, c, "/pods/", "0"), watchPods(t, c, "/pods/", "0")
	for range 2 {
		event := <-vandal.ResultChan()
		object := event.Object.(runtime.CacheableObject).GetObject().(*example.Pod)
		object.Labels["x"] = "ruined"
		event.Object.GetObjectKind().SetGroupVersionKind(example.SchemeGroupVersion.WithKind("Ruin"))
		metaOf(t, event.Object).SetName("ruined")
		metaOf(t, event.Object).GetLabels()["x"] = "ruined"

		got := <-victim.ResultChan()
		pod := got.Object.(runtime.CacheableObject).GetObject().(*example.Pod)
		assert.Equal(t, "one", pod.Name, "the name that the victim got")
		assert.Equal(t, "y", pod.Labels["x"], "the label that the victim got")
		assert.Empty(t, pod.Kind, "the kind that the victim got")
		put(store, poddata.Pod("a/one", "x=y"))
	}
	_, pods := list(t, c, "/pods/", "0")
	assert.Equal(t, "y", pods.Items[0].Labels["x"], "the cache's own object was changed: %v", pods.Items[0])
}

// Regression 141: the client of a watch whose time is over before it begins learns why
// nothing comes.
func TestWatchWhoseTimeIsOver(t *testing.T) {
	c := start(t, newStore(poddata.Pod("a/one")))
	for _, rv := range []string{"", "0", "2"} {
		ctx, cancel := context.WithTimeout(t.Context(), -time.Second)
		_, err := c.Watch(ctx, "/pods/", everything(rv))
		cancel()
		require.Error(t, err, rv)
		assert.True(t, apierrors.IsTimeout(err), "at %q: got %v", rv, err)
		assert.ErrorContains(t, err, "timeoutSeconds")
	}
}

// REGRESSIONS 64: while servers restart one after the other, the client of a
// quiet resource keeps a position that the next server knows: bookmarks bring
// it past the list that the next server has begun with.
func TestRollingRestartOfAQuietResource(t *testing.T) {
	inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		position, servers := "2", []*cacher.Cacher{c}
		for range 3 {
			w := watchPods(t, servers[len(servers)-1], "/pods/", position, withBookmarks)
			for range 50 {
				store.Touch()
			}
			servers = append(servers, start(t, store)) // another one restarts
			store.Touch()
			require.NoError(t, store.RequestWatchProgress(t.Context())) // as etcd reports by itself now and then
			elapse(cacher.DefaultBookmarkInterval + 2*time.Second)
			lines := received(w)
			require.NotEmpty(t, lines, "no bookmark comes")
			_, err := fmt.Sscanf(lines[len(lines)-1], "BOOKMARK@%s", &position)
			require.NoError(t, err, "got %q", lines)
			servers[len(servers)-2].Stop()
		}
		w := watchPods(t, servers[len(servers)-1], "/pods/", position)
		last := put(store, poddata.Pod("a/two"))
		expectReceived(t, w, fmt.Sprintf("ADDED a/two@%d", last))
		servers[len(servers)-1].Stop()
	})
}

// The error that ends watchers is an object of each watcher's own: an API
// server's handlers write the kind into it while they encode it, all at once.
func TestWatchersGetErrorsOfTheirOwn(t *testing.T) {
	inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		watches := []*podWatch{watchPods(t, c, "/pods/", "2"), watchPods(t, c, "/pods/", "2")}
		synctest.Wait()
		store.Corrupt(apierrors.NewInternalError(errors.New("can't be decoded")))
		put(store, poddata.Pod("a/corrupt"))
		for _, w := range watches {
			event := <-w.ResultChan()
			status, ok := event.Object.(*metav1.Status)
			require.Equal(t, watch.Error, event.Type, "what a watcher got: %v", event.Object)
			require.True(t, ok, "a watcher got a %T", event.Object)
			assert.Empty(t, status.Kind, "the error was encoded by another watcher's handler: %+v", status.TypeMeta)
			status.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Status"})
		}
	})
}

// client-go's Reflector, when its watch-list ends before its first event, goes on by how
// the watch ends. After a 429 it asks for the same again. After "expired" and "too
// large" it asks for the most recent state. Anything else makes it list, which a busy
// server should be spared.
func TestWhatClientGoDoesWithAStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		err   *apierrors.StatusError
		event bool // as an ERROR event, not as the answer to the request
		lists bool
	}{
		"429":                 {apierrors.NewTooManyRequests("later", 1), false, false},
		"429 as an event":     {apierrors.NewTooManyRequests("later", 1), true, false},
		"504":                 {apierrors.NewTimeoutError("slow", 1), false, true},
		"504 as an event":     {apierrors.NewTimeoutError("slow", 1), true, true},
		"500":                 {apierrors.NewInternalError(errors.New("no")), false, true},
		"500 as an event":     {apierrors.NewInternalError(errors.New("no")), true, true},
		"503":                 {apierrors.NewServiceUnavailable("no"), false, true},
		"too large, an event": {storage.NewTooLargeResourceVersionError(9, 1, 1).(*apierrors.StatusError), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var requests []string
				lw := &cache.ListWatch{
					ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
						requests = append(requests, "list")
						return &example.PodList{}, nil
					},
					WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
						requests = append(requests, "watch")
						switch {
						case len(requests) > 1:
							return watch.NewFake(), nil
						case tc.event:
							w := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1})
							status := tc.err.Status()
							w.Error(&status)
							return w, nil
						}
						return nil, tc.err
					},
				}
				r := cache.NewReflector(lw, &example.Pod{}, cache.NewStore(cache.MetaNamespaceKeyFunc), 0)
				go r.Run(ctx.Done())
				elapse(20 * time.Second)
				synctest.Wait()
				require.GreaterOrEqual(t, len(requests), 2)
				assert.Equal(t, tc.lists, requests[1] == "list", "%q", requests)
				cancel()
				synctest.Wait()
			})
		})
	}
}

// REGRESSIONS 156: a watch from the most recent state, while storage is silent for
// longer than the cache waits, is refused with 429 and a Retry-After, and never ends
// with an ERROR event before its first event.
func TestWatchesWhileStorageIsSilent(t *testing.T) {
	no := false
	for name, change := range map[string]func(*storage.ListOptions){
		"a watch-list":              streaming,
		"a watch with its state":    withBookmarks,
		"a watch without its state": func(o *storage.ListOptions) { o.SendInitialEvents = &no },
		"a watch-list not older":    func(o *storage.ListOptions) { streaming(o); o.ResourceVersion = "3" },
	} {
		for fault, hit := range map[string]func(*memstore.Store) (release func()){
			"silent": func(store *memstore.Store) func() {
				release, back := store.Hold(), takeAway(store, false)
				return func() { release(); back() }
			},
			"refuses": func(store *memstore.Store) func() {
				store.Fail("version", errors.New("no"))
				store.BreakWatches(apierrors.NewServiceUnavailable("no"))
				store.Fail("watch", errors.New("no"))
				return func() { store.Fail("version", nil); store.Fail("watch", nil) }
			},
		} {
			t.Run(name+"/"+fault, func(t *testing.T) {
				inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					release := hit(store)
					put(store, poddata.Pod("a/two"))
					elapse(time.Second)
					goList(t.Context(), c, "") // somebody else's, which shows that storage is silent
					elapse(30 * time.Second)
					opts := everything("")
					change(&opts)
					w, err := c.Watch(t.Context(), "/pods/", opts)
					code, seconds := retryAfter(err)
					require.EqualValues(t, http.StatusTooManyRequests, code, "a watch: %v, %v", w, err)
					assert.NotZero(t, seconds)
					release()
					elapse(10 * time.Second)
					w, err = c.Watch(t.Context(), "/pods/", opts)
					require.NoError(t, err)
					w.Stop()
				}, unchecked)
			})
		}
	}
}

// Watches by what is indexed, and of one object that is there, resume likewise; those
// of which something has left the window are told 410, an object that has left their
// selection included.
func TestWatchesThatResumeBeyondTheWindow(t *testing.T) {
	store := func() *memstore.Store {
		return newStore(poddata.Pod("a/stays", "spec.nodeName=n1", "app=1"), poddata.Pod("a/leaves", "spec.nodeName=n2", "app=2")) // 2, 3
	}
	inBubble(t, store, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		put(store, poddata.Pod("a/leaves", "spec.nodeName=n3", "app=3")) // 4
		for range 500 {
			put(store, poddata.Pod("a/noisy", "spec.nodeName=n3", "app=3"))
		}
		elapse(time.Minute)
		require.Greater(t, c.Status().OldestResourceVersion, uint64(300))
		const gone = "ERROR 410 Expired"
		for _, watch := range []struct {
			key, label, field string
			rv                int
			want              []string
		}{
			{"/pods/", "", "spec.nodeName=n1", 3, nil},
			{"/pods/", "", "spec.nodeName=n1", 2, []string{gone, "closed"}}, // before the list
			{"/pods/", "", "spec.nodeName=n2", 3, []string{gone, "closed"}},
			{"/pods/", "", "spec.nodeName=n2", 4, nil},
			{"/pods/", "", "spec.nodeName=n3", 4, []string{gone, "closed"}},
			{"/pods/", "app=1", "", 3, nil},
			{"/pods/", "app in (1,2)", "", 3, []string{gone, "closed"}},
			{"/pods/", "app in (1,2)", "", 4, nil},
			{"/pods/", "app!=3", "", 4, []string{gone, "closed"}}, // no equality
			{"/pods/a/", "app=3", "spec.nodeName=n1", 4, nil},
			{"/pods/b/", "", "", 3, nil},
			{"/pods/a/", "", "", 4, []string{gone, "closed"}},
			{"/pods/a/stays", "", "", 3, nil},
			{"/pods/a/leaves", "", "", 3, []string{gone, "closed"}},
			{"/pods/a/leaves", "", "", 4, nil},
			{"/pods/a/none", "", "", 4, []string{gone, "closed"}}, // it may have been there
		} {
			w := watchPods(t, c, watch.key, strconv.Itoa(watch.rv), selecting(watch.label, watch.field), func(o *storage.ListOptions) {
				o.Recursive = watch.key[len(watch.key)-1] == '/'
			})
			got := received(w)
			require.Equal(t, watch.want, got, "%+v", watch)
			w.cancel()
		}
	}, func(config *cacher.Config) {
		config.EventsHistoryWindow, config.LabelIndexes, config.IndexerFuncs = 10*time.Second, []string{"app"}, poddata.Triggers()
	})
}

// A registry returns the watch of a cache as it is unless it filters events;
// a question about that opens no watch, and waits for no cache.
func TestReturnsWatches(t *testing.T) {
	c := start(t, newStore(poddata.Pod("a/one")))
	var lists keptlists.Encoder
	plain := func(ctx context.Context) (watch.Interface, error) { return c.Watch(ctx, "/pods/", everything("0")) }
	for name, test := range map[string]struct {
		open        func(context.Context) (watch.Interface, error)
		same, other bool
	}{
		"the cache itself": {open: plain, same: true},
		"a filter": {open: func(ctx context.Context) (watch.Interface, error) {
			w, err := plain(ctx)
			return watch.Filter(w, func(e watch.Event) (watch.Event, bool) { return e, true }), err
		}, other: true},
		"another storage": {open: func(context.Context) (watch.Interface, error) { return watch.NewFake(), nil }, other: true},
		"an error":        {open: func(context.Context) (watch.Interface, error) { return nil, io.EOF }},
	} {
		same, other := lists.ReturnsWatches(t.Context(), test.open)
		require.Equal(t, test.same, same, name)
		require.Equal(t, test.other, other, name)
	}
	require.Empty(t, c.Status().Ended, "no watch was opened")
}

// Many transactions of two writes each, and readers that begin at any time:
// each state that a client comes to by a list or initial events, and goes on
// from by a watch, has both writes or none.
func TestTransactionsOnTheWay(t *testing.T) {
	const transactions = 300
	store := newStore(poddata.Pod("a/one"), poddata.Pod("a/two"))
	c := start(t, store)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range transactions {
			store.EndRevisions(i%3 > 0)
			store.Txn(
				memstore.Write{Key: "/pods/a/one", Object: poddata.Pod("a/one")},
				memstore.Write{Key: "/pods/a/two", Object: poddata.Pod("a/two")},
			)
			if i%10 == 0 {
				store.BreakWatches(nil)
			}
		}
	}()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		pods := &example.PodList{}
		require.NoError(t, c.GetList(ctx, "/pods/", everything("0"), pods))
		one, two := pods.Items[0].ResourceVersion, pods.Items[1].ResourceVersion
		if one != two {
			require.Equal(t, "3", pods.ResourceVersion, "one is at %s, two at %s in the list at %s", one, two, pods.ResourceVersion)
		}
	}
	expectReached(t, c, transactions+3)
	assert.Equal(t, 1, store.Requests()["list"], "lists")
}

// slowSelector takes part in every evaluation of a label selector that has many requirements.
type slowSelector struct {
	labels.Selector
	evaluating, evaluate chan struct{}
}

func (s slowSelector) DeepCopySelector() labels.Selector { return s }

func (s slowSelector) Matches(l labels.Labels) bool {
	select {
	case s.evaluating <- struct{}{}:
	default:
	}
	<-s.evaluate
	return s.Selector.Matches(l)
}

// many is a label selector with n requirements, and what all objects satisfy.
func many(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("k%d!=v", i)
	}
	return strings.Join(all, ",")
}

// While the selector of one watch is evaluated, others get events, begin and end
// (regression 176).
func TestASlowSelectorHoldsUpItsOwnWatch(t *testing.T) {
	store := onePod()
	c := newCache(t, store)
	parsed, err := labels.Parse(many(5000))
	require.NoError(t, err)
	slow := slowSelector{parsed, make(chan struct{}, 1), make(chan struct{})}
	evaluate := sync.OnceFunc(func() { close(slow.evaluate) })
	t.Cleanup(evaluate)
	before := watchPods(t, c, "/pods/", "2")
	hostile := watchPods(t, c, "/pods/", "2", func(o *storage.ListOptions) { o.Predicate.Label = slow })
	put(store, poddata.Pod("a/two"))
	select {
	case <-slow.evaluating:
	case <-time.After(patience):
		require.FailNow(t, "the selector is not evaluated")
	}
	before.expect("ADDED a/two@3")
	later := watchPods(t, c, "/pods/", "2")
	later.expect("ADDED a/two@3")
	before.Stop()
	before.expectClosed()
	put(store, poddata.Pod("a/three"))
	later.expect("ADDED a/three@4")
	evaluate()
	hostile.expect("ADDED a/two@3", "ADDED a/three@4")
}

// A watch that the dispatcher does not feed gets what every watch gets.
func TestWatchOfALargeSelector(t *testing.T) {
	large := func(o *storage.ListOptions) {
		o.Predicate.Label = poddata.Predicate(many(5000), "").Label
	}
	inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "0", large, withBookmarks)
		w.expect("ADDED a/one@2")
		put(store, poddata.Pod("a/two"))
		w.expect("ADDED a/two@3")
		store.Put("/other/x", poddata.Pod("x/x"))
		elapse(2 * time.Minute)
		require.Contains(t, w.next(), "BOOKMARK")
		put(store, poddata.Pod("a/one", "k7=v"))
		for line := w.next(); !strings.HasPrefix(line, "DELETED a/one@"); line = w.next() {
			require.Contains(t, line, "BOOKMARK", "before the object leaves the selection")
		}
		synctest.Wait() // the watch is level again: others get no last bookmark
		page, err := c.StatusPage(status.Query{Limit: 10})
		require.NoError(t, err)
		require.Len(t, page.Watchers, 1)
		assert.Equal(t, status.Parked, page.Watchers[0].State)
		assert.Zero(t, page.Watches.WorstLag)
		taken := make(chan error)
		go func() { taken <- c.Bookmark(testContext(t)) }()
		synctest.Wait()
		select {
		case err := <-taken:
			require.FailNow(t, "the client has not taken its last bookmark", "%v", err)
		default:
		}
		begun := time.Now()
		require.Contains(t, w.next(), "BOOKMARK")
		require.NoError(t, <-taken)
		assert.Less(t, time.Since(begun), time.Second, "in virtual time")

		store.Corrupt(apierrors.NewInternalError(errors.New("can't be decoded")))
		put(store, poddata.Pod("a/corrupt"))
		require.Contains(t, w.next(), "ERROR")
		require.Equal(t, "closed", w.next())
	})
	inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "0", large)
		w.expect("ADDED a/one@2")
		synctest.Wait()
		c.Stop()
		w.expectClosed()
	})
}

// Selectors beyond any use are refused, wherever they come from.
func TestSelectorsWithTooManyRequirements(t *testing.T) {
	inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		expectList(t, c, "/pods/", "0", "a/one@2", selecting(many(10_000), ""))
		opts := storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: poddata.Predicate(many(10_001), "")}
		err := c.GetList(testContext(t), "/pods/", opts, &example.PodList{})
		require.True(t, apierrors.IsBadRequest(err), "LIST: %v", err)
		require.ErrorContains(t, err, "10001 requirements")
		_, err = c.Watch(testContext(t), "/pods/", opts)
		require.True(t, apierrors.IsBadRequest(err), "WATCH: %v", err)
	})
}

// A watch that has ended, and a LIST whose client has gone, evaluate their selector no more.
func TestSelectorsOfThoseThatHaveGone(t *testing.T) {
	inBubble(t, func() *memstore.Store {
		store := newStore()
		for i := range 1000 {
			put(store, poddata.Pod(fmt.Sprintf("a/%04d", i)))
		}
		return store
	}, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		parsed, err := labels.Parse(many(5000))
		require.NoError(t, err)
		var evaluated atomic.Int64
		first := make(chan struct{})
		counting := countingSelector{parsed, &evaluated, first}
		opts := storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything}
		opts.Predicate.Label = counting
		w, err := c.Watch(t.Context(), "/pods/", opts)
		require.NoError(t, err)
		<-first
		w.Stop()
		first <- struct{}{}
		synctest.Wait()
		require.EqualValues(t, 1, evaluated.Swap(0), "the watch goes on")

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.GetList(ctx, "/pods/", opts, &example.PodList{}) }()
		<-first
		cancel()
		first <- struct{}{}
		require.ErrorIs(t, <-done, context.Canceled)
		require.EqualValues(t, 1, evaluated.Load(), "the LIST goes on")
	})
}

// countingSelector selects nothing, and waits in its first evaluation.
type countingSelector struct {
	labels.Selector
	evaluated *atomic.Int64
	first     chan struct{}
}

func (s countingSelector) DeepCopySelector() labels.Selector { return s }

func (s countingSelector) Matches(labels.Labels) bool {
	if s.evaluated.Add(1) == 1 {
		s.first <- struct{}{}
		<-s.first
	}
	return false
}
