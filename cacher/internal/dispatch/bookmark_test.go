// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
	"unique"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// idleFanout returns a Fanout whose dispatcher does only what a test has it do.
func idleFanout(clock *clocktesting.FakeClock) *Fanout {
	return New(Config{
		State:   watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1 << 40}),
		Indexes: match.NewIndexes(match.Config{Prefix: "/pods/"}), Clock: clock, Time: timeline.New(clock), Tasks: &tasks.Group{},
		Versioner: storage.APIObjectVersioner{}, NewObject: func() runtime.Object { return &example.Pod{} },
		BookmarkInterval: time.Second, Owner: testOwner{everySecond: func() {}}, Events: keeperFunc(func([]byte) func() { return func() {} }),
	})
}

// testOwner is verified and has nothing to do, but everySecond.
type testOwner struct{ everySecond func() }

func (testOwner) Warn(string, string, error, string) {}
func (testOwner) Unverified() bool                   { return false }
func (testOwner) EndRevision()                       {}
func (o testOwner) EverySecond()                     { o.everySecond() }

// keeperFunc is an EventKeeper whose events take no memory.
type keeperFunc func(event []byte) (drop func())

func (f keeperFunc) Keep(event []byte, _ func(int64)) (drop func()) { return f(event) }

// addWith makes a watcher known that catches up from a position, without a goroutine.
func (f *Fanout) addWith(t require.TestingT, w *watcher, q match.Query, at watchcache.Position) *watcher {
	w.registry, w.started, w.client = f.registry, f.Clock.Now(), unique.Make(status.Client{})
	require.True(t, f.registry.open(context.Background(), f.newReplayer(w, at), q), "the registry takes no watcher")
	return w
}

// addWatcher makes a watcher of all pods known, from a snapshot on.
func addWatcher(t *testing.T, f *Fanout, snapshot *watchcache.Snapshot) *watcher {
	t.Helper()
	return f.addWith(t, &watcher{result: make(chan watch.Event, 10), after: snapshot.RV(), bookmarks: true}, match.NewQuery("/pods/", true, storage.Everything), snapshot.Next())
}

// The end of a revision comes right after the dispatcher has looked for events,
// when bookmarks are due: a watcher that has got the revision's event gets its
// bookmark all the same, and not an interval later.
func TestBookmarkWhenARevisionEndsMeanwhile(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	d := idleFanout(clock)
	d.State.Replace(nil, 5)
	d.advance()
	snapshot := d.State.Latest()
	w := addWatcher(t, d, snapshot)
	require.True(t, d.registry.goLive(w, snapshot.Next()), "the watcher does not go live")
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", ResourceVersion: "6"}}
	_, err := d.State.Apply(watchcache.Change{Type: watchcache.Added, RV: 6, Element: &watchcache.Element{Key: "/pods/a/b", RV: 6, Object: pod}})
	require.NoError(t, err)
	d.Owner = testOwner{everySecond: func() { // called between the look and the bookmarks
		assert.NoError(t, d.State.Progress(6))
		d.RevisionEnds()
	}}
	clock.Step(2 * time.Second)
	d.tick()
	select {
	case <-d.wake:
		d.advance()
	default:
	}
	d.Close()
	var got []string
	for event := range w.result {
		got = append(got, string(event.Type))
	}
	assert.Equal(t, []string{"ADDED", "BOOKMARK"}, got, "what the watcher got")
}

// Regression 102: storage was restored from a backup, the cache has listed it,
// and a watcher has begun in the new history. A bookmark that is due right when
// the dispatcher finds its events gone does not name a version of the old
// history.
func TestBookmarkAfterARestoredBackup(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	d := idleFanout(clock)
	d.State.Replace(nil, 100)
	d.advance()
	d.advance()

	d.State.Replace(nil, 5)
	snapshot := d.State.Latest()
	w := addWatcher(t, d, snapshot)
	d.sendDueBookmarks(d.Time.Now())
	require.True(t, d.registry.goLive(w, snapshot.Next()), "the watcher does not go live")
	for range 3 {
		clock.Step(2 * time.Second)
		d.sendDueBookmarks(d.Time.Now()) // before, between and after the steps of the dispatcher
		d.advance()
	}
	clock.Step(2 * time.Second)
	d.tick()
	d.Close()
	bookmarks := 0
	for event := range w.result {
		accessor, err := meta.Accessor(event.Object)
		require.NoError(t, err, "got %v of %v, %v", event.Type, accessor, err)
		require.Equal(t, watch.Bookmark, event.Type, "got %v of %v, %v", event.Type, accessor, err)
		require.Equal(t, "5", accessor.GetResourceVersion(), "got %v of %v, %v", event.Type, accessor, err)
		bookmarks++
	}
	assert.NotZero(t, bookmarks, "there is no bookmark of the new history")
}

// busyClock applies a change whenever the dispatcher looks at the time, so that there is
// always one more to dispatch.
type busyClock struct {
	clock.RealClock
	change func()
}

func (c busyClock) Since(t time.Time) time.Duration {
	c.change()
	return c.RealClock.Since(t)
}

// The bookmarks that a server sends at its end come on a cache whose changes never end.
func TestBookmarkOnABusyCache(t *testing.T) {
	d := idleFanout(clocktesting.NewFakeClock(time.Unix(1_000_000, 0)))
	d.Clock = clock.RealClock{}
	d.registry.mu.bookmarks.interval = time.Hour // none is due
	d.State.Replace(nil, 5)
	d.advance()
	snapshot := d.State.Latest()
	w := d.addWith(t, &watcher{result: make(chan watch.Event, 10), after: snapshot.RV(), bookmarks: true},
		match.NewQuery("/pods/none/", true, storage.Everything), snapshot.Next())
	require.True(t, d.registry.goLive(w, snapshot.Next()), "the watcher does not go live")
	var rv atomic.Uint64
	rv.Store(5)
	d.Time = timeline.New(busyClock{change: func() {
		at := rv.Add(1)
		_, err := d.State.Apply(watchcache.Change{Type: watchcache.Added, RV: at, Element: &watchcache.Element{Key: fmt.Sprintf("/pods/a/%d", at), RV: at}, Whole: true})
		assert.NoError(t, err)
	}})
	d.Time.Now()

	ctx, cancel := context.WithCancel(t.Context())
	run := make(chan struct{})
	go func() { defer close(run); d.Run(ctx) }()
	marked := make(chan error, 1)
	within, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	go func() { marked <- d.Bookmark(within) }()
	select {
	case event := <-w.result:
		assert.Equal(t, watch.Bookmark, event.Type)
	case err := <-marked:
		assert.Failf(t, "no bookmark", "%v", err)
	}
	cancel()
	<-run
}
