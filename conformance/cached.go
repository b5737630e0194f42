// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// cacheClauses are about a cache that is fed by the backend.
var cacheClauses = []clause{
	{
		name: "FilledStorage",
		rule: "a cache that begins on a storage with objects has them all, and what is written after",
		run:  filledStorage,
	},
	{
		name: "ConsistentReads",
		rule: "a GET and a LIST without a resourceVersion return what was written beside the cache before",
		run:  consistentReads,
	},
	{
		name: "StaleCache", needs: writes,
		rule: "an update or a deletion that begins with a stale cached object is tried again with the live one",
		run:  staleCache,
	},
	{
		name: "BrokenWatches",
		rule: "when the storage's watches end without a reason, the cache resumes, and its watchers are told everything once and in order",
		run:  brokenWatches,
	},
	{
		name: "TooOld",
		rule: "a watch from before the cache's window gets 410 Expired, one from inside it everything: never a gap",
		run:  tooOld,
	},
}

func filledStorage(t *testing.T, f *fixture) {
	h := f.begin(t, f.raw)
	h.write(t, f, f.raw)
	c := f.cache(t)
	list := f.list(t, c, Prefix, at{rv: h.last()})
	samePods(t, "a LIST of any version from a cache that has just begun", h.at(h.last(), everything), list.Items)
	begun := rvOfList(t, list)
	o := f.observe(t, c, "a watch", Prefix, everything.since(begun))
	for _, step := range script {
		h.play(t, f, f.raw, step)
	}
	o.mustTell(t, h.after(begun))
}

func consistentReads(t *testing.T, f *fixture) {
	c := f.cache(t)
	h := f.begin(t, f.raw)
	for _, step := range script {
		readNow(t, f, c, h, h.play(t, f, f.raw, step))
	}
}

func staleCache(t *testing.T, f *fixture) {
	between := interpose(f.store)
	c := f.cache(t, func(config *cacher.Config) { config.Storage = between })
	for _, name := range []string{"updated", "restored", "deleted", "recreated", "checked"} {
		pod := f.create(t, c, poddata.Pod("a/"+name, "app=old"))
		f.get(t, c, keyOf(t, pod), pod.ResourceVersion) // the cache has it
	}
	release := between.hold()
	defer release()

	setApp := func(app string) func(*example.Pod) {
		return func(pod *example.Pod) { pod.Labels = map[string]string{"app": app} }
	}
	key := Prefix + "a/updated"
	f.update(t, f.raw, key, setApp("new"))
	f.update(t, c, key, func(pod *example.Pod) { pod.Annotations = map[string]string{"by": "cacher"} })
	if got := f.get(t, f.raw, key, ""); got.Labels["app"] != "new" || got.Annotations["by"] != "cacher" {
		t.Errorf("an update through a stale cache has undone another: labels %v, annotations %v", got.Labels, got.Annotations)
	}

	key = Prefix + "a/restored"
	f.update(t, f.raw, key, setApp("new"))
	f.update(t, c, key, setApp("old")) // as the cache has it
	if got := f.get(t, f.raw, key, ""); got.Labels["app"] != "old" {
		t.Errorf("an update that makes the live object what the stale cache has is acknowledged, and has changed nothing: labels %v", got.Labels)
	}

	key = Prefix + "a/deleted"
	f.remove(t, f.raw, key)
	err := c.GuaranteedUpdate(f.ctx, key, &example.Pod{}, false, nil, changing(func(*example.Pod) {}), nil)
	if !storage.IsNotFound(err) {
		t.Errorf("an update of what the cache has and the storage has not returns %v, want \"not found\"", err)
	}

	key = Prefix + "a/recreated"
	f.remove(t, f.raw, key)
	fresh := poddata.Pod("a/recreated")
	fresh.UID = "another"
	f.create(t, f.raw, fresh)
	uid := fresh.UID
	if err := c.Delete(f.ctx, key, &example.Pod{}, &storage.Preconditions{UID: &uid}, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Errorf("a deletion with the live object's UID as precondition fails because the cached one has another: %v", err)
	}

	key = Prefix + "a/checked"
	f.update(t, f.raw, key, setApp("new"))
	refuse := errors.New("must not be deleted")
	protect := func(_ context.Context, object runtime.Object) error {
		if object.(*example.Pod).Labels["app"] == "new" {
			return refuse
		}
		return nil
	}
	if err := c.Delete(f.ctx, key, &example.Pod{}, nil, protect, nil, storage.DeleteOptions{}); !errors.Is(err, refuse) {
		t.Errorf("a deletion that the live object forbids returns %v, want %v", err, refuse)
	}
}

func brokenWatches(t *testing.T, f *fixture) {
	between := interpose(f.store)
	between.cutEvery = 3
	c := f.cache(t, func(config *cacher.Config) { config.Storage = between })
	h := f.begin(t, f.raw)
	o := f.observe(t, c, "a watch over a storage whose watches end after every third event", Prefix, everything.since(h.start))
	h.write(t, f, f.raw)
	o.mustTell(t, h.after(h.start))
}

// tinyWindow makes the cache let go of its history at once.
func tinyWindow(config *cacher.Config) { config.WindowBytes = 1 }

func tooOld(t *testing.T, f *fixture) {
	c := f.cache(t, tinyWindow)
	h := f.begin(t, f.raw)
	h.write(t, f, f.raw)
	f.letGo(t, c, h, h.last())
	told, refused := 0, 0
	for _, rv := range h.versions() {
		what := fmt.Sprintf("a watch from resourceVersion %d of a cache that keeps little", rv)
		o, err := f.tryObserve(t, c, what, Prefix, everything.since(rv))
		if err == nil {
			want := h.after(rv)
			if len(want) == 0 {
				continue
			}
			first := o.next(t, "either ERROR 410 or "+want[0].String())
			if first.kind != watch.Error {
				o.mustGoOn(t, []event{first}, want)
				told++
				continue
			}
			err = first.err
		}
		mustExpire(t, what, err)
		refused++
	}
	if refused == 0 {
		t.Errorf("none of %d watches was refused, though the cache has let go of what is before %d", told, h.last())
	}
}

// letGo writes until the cache's window no longer reaches back to rv.
func (f *fixture) letGo(t *testing.T, c cached, h *history, rv uint64) {
	t.Helper()
	for i := 0; c.cacher.Status().OldestResourceVersion <= rv; i++ {
		if f.ctx.Err() != nil {
			t.Fatalf("the cache has not let go of %d after %d more writes: %+v", rv, i, c.cacher.Status())
		}
		e := h.play(t, f, f.raw, step{pod: "a/flush"})
		f.get(t, c, e.key, version(e.rv)) // the cache has it
	}
}

// mustExpire fails unless err is what tells a client to list again.
func mustExpire(t *testing.T, what string, err error) {
	t.Helper()
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Fatalf("%s fails with %v, want 410 Expired, which tells a client to list again", what, err)
	}
}

// eventually waits until something holds.
func (f *fixture) eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(f.ctx, pollInterval, f.patience, true, func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		t.Fatalf("%s: not within %s", what, f.patience)
	}
}
