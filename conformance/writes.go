// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strconv"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// writeClauses are about writes that meet.
var writeClauses = []storeClause{
	{
		name: "ConcurrentUpdates", needs: writes,
		rule: "updates of one object at the same time are made one after the other, and none is lost",
		run:  updateConcurrently,
	},
	{
		name: "ConcurrentCreates", needs: writes,
		rule: "of creations of one key at the same time exactly one succeeds, the others are told that it exists",
		run:  createConcurrently,
	},
}

const writers, updatesEach = 4, 10

func updateConcurrently(t *testing.T, f *fixture, s storage.Interface) {
	created := f.create(t, s, poddata.Pod("a/counter"))
	key := keyOf(t, created)
	o := f.observe(t, s, "a watch of everything", Prefix, everything.since(rvOf(t, created)))
	count := func(pod *example.Pod) int {
		n, _ := strconv.Atoi(pod.Annotations["count"])
		return n
	}
	var g errgroup.Group
	for range writers {
		g.Go(func() error {
			for range updatesEach {
				increment := changing(func(pod *example.Pod) {
					pod.Annotations = map[string]string{"count": fmt.Sprint(count(pod) + 1)}
				})
				if err := s.GuaranteedUpdate(f.ctx, key, &example.Pod{}, false, nil, increment, nil); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatalf("an update beside others fails: %v", err)
	}
	if got := count(f.get(t, s, key, "")); got != writers*updatesEach {
		t.Fatalf("after %d increments the object counts %d", writers*updatesEach, got)
	}
	f.create(t, s, poddata.Pod("a/end"))
	for i, e := range withoutBookmarks(o.until(t, endKey)) {
		if e.key == key && count(e.object) != i+1 {
			t.Fatalf("event %d of the increments is %v", i+1, e)
		}
	}
}

func createConcurrently(t *testing.T, f *fixture, s storage.Interface) {
	results := make(chan error, writers)
	var g errgroup.Group
	for range writers {
		g.Go(func() error {
			pod := poddata.Pod("a/one")
			results <- s.Create(f.ctx, Prefix+"a/one", pod, &example.Pod{}, 0)
			return nil
		})
	}
	_ = g.Wait()
	succeeded := 0
	for range writers {
		switch err := <-results; {
		case err == nil:
			succeeded++
		case !storage.IsExist(err):
			t.Errorf("a creation beside others fails with %v, want \"exists\"", err)
		}
	}
	if succeeded != 1 {
		t.Errorf("%d creations of one key have succeeded, want 1", succeeded)
	}
}
