// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

func TestWatchFromStateThenEvents(t *testing.T) {
	store := newStore(poddata.Pod("a/one"), poddata.Pod("b/two")) // at 2 and 3
	c := start(t, store)
	w := watchPods(t, c, "/pods/", "0")
	w.expect("ADDED a/one@2", "ADDED b/two@3")
	put(store, poddata.Pod("a/three"))
	put(store, poddata.Pod("a/one", "x=y"))
	store.Remove("/pods/b/two")
	w.expect("ADDED a/three@4", "MODIFIED a/one@5", "DELETED b/two@6")
}

// Where a watch begins, by resourceVersion and sendInitialEvents: see
// watchStart. In each case the cache lags behind storage when the watch is
// opened, by the event at 4.
func TestWatchStart(t *testing.T) {
	no := func(o *storage.ListOptions) { f := false; o.SendInitialEvents = &f }
	for _, test := range []struct {
		name, rv string
		change   func(*storage.ListOptions)
		want     []string
	}{
		{"state at any version", "0", nil, []string{"ADDED a/one@2", "ADDED a/two@3", "ADDED a/three@4", "ADDED a/late@5"}},
		{"state at the most recent version", "", nil, []string{"ADDED a/one@2", "ADDED a/three@4", "ADDED a/two@3", "ADDED a/late@5"}},
		{"after a version", "2", nil, []string{"ADDED a/two@3", "ADDED a/three@4", "ADDED a/late@5"}},
		{"after a version that the cache has not reached", "4", nil, []string{"ADDED a/late@5"}},
		{"streamed state", "0", streaming, []string{"ADDED a/one@2", "ADDED a/two@3", "BOOKMARK@3 end of initial events", "ADDED a/three@4", "ADDED a/late@5"}},
		{"streamed state at the most recent version", "", streaming, []string{"ADDED a/one@2", "ADDED a/three@4", "ADDED a/two@3", "BOOKMARK@4 end of initial events", "ADDED a/late@5"}},
		{"streamed state not older than", "4", streaming, []string{"ADDED a/one@2", "ADDED a/three@4", "ADDED a/two@3", "BOOKMARK@4 end of initial events", "ADDED a/late@5"}},
		{"no state, any version", "0", no, []string{"ADDED a/three@4", "ADDED a/late@5"}},
		{"no state, most recent version", "", no, []string{"ADDED a/late@5"}},
		{"no state, after a version", "2", no, []string{"ADDED a/two@3", "ADDED a/three@4", "ADDED a/late@5"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := newStore()
			c := start(t, store)
			put(store, poddata.Pod("a/one"))
			put(store, poddata.Pod("a/two"))
			until(t, "the cache is at 3", func() bool { return c.Status().ResourceVersion == 3 })
			release := store.Hold()
			put(store, poddata.Pod("a/three"))
			if test.change == nil {
				test.change = func(*storage.ListOptions) {}
			}
			opened := make(chan *podWatch, 1)
			go func() { opened <- watchPods(t, c, "/pods/", test.rv, test.change) }()
			// Whoever needs no fresh state is served before the event comes.
			var w *podWatch
			if needsFresh := test.rv == "" || (test.rv == "4" && test.name != "after a version that the cache has not reached"); !needsFresh || test.name == "no state, most recent version" {
				w = <-opened
				release()
			} else {
				release()
				w = <-opened
			}
			until(t, "the cache is at 4", func() bool { return c.Status().ResourceVersion >= 4 })
			put(store, poddata.Pod("a/late"))
			w.expect(test.want...)
		})
	}
}

// REGRESSIONS 1, 2 and 6: a resourceVersion below what is kept gives an ERROR
// event with a 410, never a silent skip.
func TestWatchTooOld(t *testing.T) {
	store := newStore(poddata.Pod("a/one"), poddata.Pod("a/two")) // the list is at 3
	c := start(t, store)
	watchPods(t, c, "/pods/", "2").expect("ERROR 410 Expired", "closed")
	w := watchPods(t, c, "/pods/", "3")
	put(store, poddata.Pod("a/three"))
	w.expect("ADDED a/three@4")

	small := start(t, store, func(c *cacher.Config) { c.WindowBytes = 1 })
	witness := watchPods(t, small, "/pods/", "4")
	put(store, poddata.Pod("a/one"))
	put(store, poddata.Pod("a/one"))
	put(store, poddata.Pod("a/one"))
	witness.expect("MODIFIED a/one@5", "MODIFIED a/one@6", "MODIFIED a/one@7")
	until(t, "5 leaves the window", func() bool { return small.Status().OldestResourceVersion > 4 })
	watchPods(t, small, "/pods/", "4").expect("ERROR 410 Expired", "closed")
}

// REGRESSIONS 22: a deletion carries its own resourceVersion and the last
// content.
func TestDeletionCarriesLastState(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "version=1"))
	c := start(t, store)
	w := watchPods(t, c, "/pods/", "2")
	put(store, poddata.Pod("a/one", "version=2"))
	store.Remove("/pods/a/one")
	w.expect("MODIFIED a/one@3")
	event := <-w.ResultChan()
	pod := event.Object.(runtime.CacheableObject).GetObject().(*example.Pod)
	if got := line(event); got != "DELETED a/one@4" || pod.Labels["version"] != "2" {
		t.Errorf("got %s with labels %v", got, pod.Labels)
	}
}

// REGRESSIONS 23: what leaves a selection is deleted from it, at the
// resourceVersion of the change and with the state that was in it; what enters
// is added.
func TestSelectorTransitions(t *testing.T) {
	for _, test := range []struct{ name, label, field string }{
		{"label equality", "color=red", ""},
		{"label set", "color in (red, crimson)", ""},
		{"label exclusion", "color notin (blue),color", ""},
		{"label inequality", "color!=blue,color", ""},
		{"field equality", "", "spec.nodeName=red"},
		{"field inequality", "", "spec.nodeName!=blue,spec.nodeName!="},
		{"both", "color=red", "spec.nodeName=red"},
	} {
		t.Run(test.name, func(t *testing.T) {
			red := func() *example.Pod { return poddata.Pod("a/one", "color=red", "spec.nodeName=red") }
			blue := func() *example.Pod { return poddata.Pod("a/one", "color=blue", "spec.nodeName=blue") }
			store := newStore(blue()) // at 2
			c := start(t, store)
			live := watchPods(t, c, "/pods/", "2", selecting(test.label, test.field))
			put(store, red())           // 3: enters
			put(store, red())           // 4: stays
			put(store, blue())          // 5: leaves
			put(store, blue())          // 6
			put(store, red())           // 7: enters
			store.Remove("/pods/a/one") // 8: is deleted
			want := []string{"ADDED a/one@3", "MODIFIED a/one@4", "DELETED a/one@5", "ADDED a/one@7", "DELETED a/one@8"}
			live.expect(want[:2]...)
			event := <-live.ResultChan()
			if pod := event.Object.(runtime.CacheableObject).GetObject().(*example.Pod); line(event) != want[2] || pod.Spec.NodeName != "red" {
				t.Errorf("got %s of a pod on %q, want %s on red", line(event), pod.Spec.NodeName, want[2])
			}
			live.expect(want[3:]...)
			// A watcher that replays the window sees the same.
			watchPods(t, c, "/pods/", "2", selecting(test.label, test.field)).expect(want...)
		})
	}
}

// REGRESSIONS 27, 29, 30 and 31: what is in scope.
func TestWatchScope(t *testing.T) {
	pods := []string{"ns1/a", "ns11/a", "ns1/b", "ns2/a"}
	for _, test := range []struct {
		name, key string
		field     string
		single    bool
		want      []string
	}{
		{"a namespace without its slash", "/pods/ns1", "", false, []string{"ns1/a", "ns1/b"}},
		{"a namespace", "/pods/ns1/", "", false, []string{"ns1/a", "ns1/b"}},
		{"one key", "/pods/ns1/a", "", true, []string{"ns1/a"}},
		{"a name in all namespaces", "/pods/", "metadata.name=a", false, []string{"ns1/a", "ns11/a", "ns2/a"}},
		{"a name in a namespace", "/pods/ns1/", "metadata.name=a", false, []string{"ns1/a"}},
		{"a namespace by field", "/pods/", "metadata.namespace=ns1", false, []string{"ns1/a", "ns1/b"}},
		{"everything", "/pods/", "", false, pods},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := newStore()
			c := start(t, store)
			scope := func(o *storage.ListOptions) {
				o.Recursive = !test.single
				o.Predicate = poddata.Predicate("", test.field)
			}
			live := watchPods(t, c, test.key, "0", scope)
			rvs := map[string]uint64{}
			for _, pod := range pods {
				rvs[pod] = put(store, poddata.Pod(pod))
			}
			var want, initial []string
			for _, pod := range test.want {
				want = append(want, fmt.Sprintf("ADDED %s@%d", pod, rvs[pod]))
			}
			live.expect(want...)
			until(t, "the cache has everything", func() bool { return c.Status().Objects == len(pods) })
			again := watchPods(t, c, test.key, "0", scope)
			for range want {
				initial = append(initial, again.next())
			}
			if fmt.Sprint(sorted(initial)) != fmt.Sprint(sorted(want)) {
				t.Errorf("initial events %v, want %v", initial, want)
			}
			// Nothing else was on its way.
			last := put(store, poddata.Pod(test.want[0]))
			for _, w := range []*podWatch{live, again} {
				w.expect(fmt.Sprintf("MODIFIED %s@%d", test.want[0], last))
			}
		})
	}
}

// REGRESSIONS 4 and 5: events that come while initial events are sent follow
// them, once each, and none goes backwards.
func TestEventsDuringInitialEvents(t *testing.T) {
	const pods, watchers = 300, 20
	store := newStore()
	for i := range pods {
		put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i)))
	}
	c := start(t, store)
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i%pods)))
			}
		}
	})
	var readers sync.WaitGroup
	for range watchers {
		readers.Go(func() {
			w, err := c.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Stop()
			highest := uint64(0)
			for range pods { // initial events, in the order of keys
				r := &counter{Interface: w}
				r.take(<-w.ResultChan(), true)
				highest = max(highest, r.last)
				if r.err != nil {
					t.Error(r.err)
					return
				}
			}
			// From the version of the snapshot on without a gap: the first
			// event that follows may be any above it, so the highest initial
			// one is the least it can be.
			r := &counter{Interface: w}
			for range 500 {
				r.take(<-w.ResultChan(), true)
				if r.err != nil || r.last <= highest {
					t.Errorf("after initial events up to %d: %d, %v", highest, r.last, r.err)
					return
				}
			}
		})
	}
	readers.Wait()
	close(stop)
	writer.Wait()
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
		if pod.Name != "one" || pod.Labels["x"] != "y" || pod.Kind != "" {
			t.Errorf("the victim got %s with labels %v and kind %q", line(got), pod.Labels, pod.Kind)
		}
		put(store, poddata.Pod("a/one", "x=y"))
	}
	_, pods := list(t, c, "/pods/", "0")
	if pods.Items[0].Labels["x"] != "y" {
		t.Errorf("the cache's own object was changed: %v", pods.Items[0])
	}
}

// REGRESSIONS 11: a watch on a cache that is not ready is refused at once, to
// be tried again.
func TestWatchBeforeReady(t *testing.T) {
	store := newStore()
	defer store.Gate("watch")()
	c, err := cacher.New(podConfig(store))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	_, err = c.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
	if seconds, ok := apierrors.SuggestsClientDelay(err); !apierrors.IsTooManyRequests(err) || !ok || seconds < 1 {
		t.Errorf("got %v, retry %v after %d s", err, ok, seconds)
	}
}

// A watch ends with its request, whatever it is doing.
func TestWatchEndsWithContext(t *testing.T) {
	for _, state := range []string{"live", "parked", "in its initial events"} {
		t.Run(state, func(t *testing.T) {
			store := newStore()
			for i := range 100 {
				put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i)))
			}
			c := start(t, store)
			rv := "101"
			if state == "in its initial events" {
				rv = "0"
			}
			w := watchPods(t, c, "/pods/", rv)
			switch state {
			case "live":
				until(t, state, func() bool { return !c.Status().Watchers[0].Parked })
			case "parked":
				until(t, "live", func() bool { return !c.Status().Watchers[0].Parked })
				burst(store, 100)
				until(t, state, func() bool { return c.Status().Watchers[0].Parked })
			default:
				until(t, state, func() bool { return c.Status().Watchers[0].Queued > 0 })
			}
			w.cancel()
			w.expectClosed()
			until(t, "it is forgotten", func() bool { return len(c.Status().Watchers) == 0 })
			w.Stop() // harmless
		})
	}
}

func TestWatchBadInput(t *testing.T) {
	c := start(t, newStore())
	for _, test := range []struct{ key, rv string }{
		{"/pods/../x", "0"}, {"/other/", "0"}, {"", "0"}, {"/pods/", "no-number"}, {"/pods/", "-1"},
	} {
		w, err := c.Watch(context.Background(), test.key, storage.ListOptions{ResourceVersion: test.rv, Predicate: storage.Everything, Recursive: true})
		if err == nil {
			w.Stop()
			t.Errorf("key %q at %q: no error", test.key, test.rv)
		}
	}
}
