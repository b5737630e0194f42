// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// concurrentClauses are about what is told while many write. A backend that
// keeps its rules for one writer may break them here, and not in every run:
// one that fails now and then is broken.
var concurrentClauses = []storeClause{
	{
		name:  "ConcurrentEvents",
		rule:  "what is written at the same time is told to every watch once, and in the order of resourceVersions",
		races: true,
		run:   watchWhileManyWrite,
	},
	{
		name:  "ConcurrentVersions",
		rule:  "when writes at the same time have finished, the current resourceVersion and that of a LIST, also of nothing, is not below any of theirs",
		races: true,
		run:   versionsAfterManyWrite,
	},
	{
		name:  "ConcurrentLists",
		rule:  "a LIST beside writes has everything that was written up to the resourceVersion it says it is at, and nothing of what came after",
		races: true,
		run:   listsBesideWrites,
	},
}

// concurrentRounds is how often each race is run.
const concurrentRounds = 100

// life creates a Pod, updates it, and removes it if it is told to.
func (f *fixture) life(s storage.Interface, name string, removed bool) (events []event, err error) {
	pod, key := poddata.Pod(name, "app=x"), Prefix+name
	note := func(kind watch.EventType, object *example.Pod) error {
		rv, err := versioner.ObjectResourceVersion(object)
		events = append(events, event{kind: kind, key: key, rv: rv, object: object})
		return err
	}
	created, updated, gone := &example.Pod{}, &example.Pod{}, &example.Pod{}
	if err := s.Create(f.ctx, key, pod, created, 0); err != nil {
		return nil, fmt.Errorf("a creation beside others fails: %w", err)
	}
	if err := note(watch.Added, created); err != nil {
		return nil, err
	}
	relabel := changing(func(pod *example.Pod) { pod.Labels = map[string]string{"app": "y"} })
	if err := s.GuaranteedUpdate(f.ctx, key, updated, false, nil, relabel, nil); err != nil {
		return nil, fmt.Errorf("an update beside others fails: %w", err)
	}
	if err := note(watch.Modified, updated); err != nil || !removed {
		return events, err
	}
	if err := s.Delete(f.ctx, key, gone, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		return nil, fmt.Errorf("a deletion beside others fails: %w", err)
	}
	last := updated.DeepCopy()
	last.ResourceVersion = gone.ResourceVersion
	return events, note(watch.Deleted, last)
}

// manyWrite writes at the same time, under names that begin with a prefix, and
// returns all writes in the order of their resourceVersions.
func (f *fixture) manyWrite(t *testing.T, s storage.Interface, prefix string, each int) (events []event) {
	t.Helper()
	var g errgroup.Group
	written := make([][]event, writers)
	for w := range writers {
		g.Go(func() error {
			for i := range each {
				life, err := f.life(s, fmt.Sprintf("%s%d-%d", prefix, w, i), i%2 == 1)
				if err != nil {
					return err
				}
				written[w] = append(written[w], life...)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	events = slices.Concat(written...)
	slices.SortFunc(events, func(a, b event) int { return cmp.Compare(a.rv, b.rv) })
	return events
}

func watchWhileManyWrite(t *testing.T, f *fixture, s storage.Interface) {
	h := f.begin(t, s)
	var watches []*observer
	for i := range writers {
		watches = append(watches, f.observe(t, s, fmt.Sprintf("watch %d of what many write", i), Prefix, everything.since(h.start)))
	}
	want := f.manyWrite(t, s, "a/", concurrentRounds/4)
	for _, o := range watches {
		o.mustTell(t, want)
	}
}

func versionsAfterManyWrite(t *testing.T, f *fixture, s storage.Interface) {
	for round := range 2 * concurrentRounds {
		namespace := fmt.Sprintf("round-%d", round)
		last := f.createAtOnce(t, s, namespace)
		current, err := s.GetCurrentResourceVersion(f.ctx)
		if err != nil {
			t.Fatalf("GetCurrentResourceVersion fails: %v", err)
		}
		if current < last {
			t.Fatalf("round %d: GetCurrentResourceVersion is %d after a write at %d beside others", round, current, last)
		}
		for scope, want := range map[string]int{namespace: writers, "nothing": 0} {
			list := f.list(t, s, Prefix+scope, at{})
			if rv := rvOfList(t, list); rv < last || len(list.Items) != want {
				t.Fatalf("round %d: a LIST of %s%s is at %d and has %d objects; after a write at %d beside others, expected were %d",
					round, Prefix, scope, rv, len(list.Items), last, want)
			}
		}
	}
}

// createAtOnce creates a Pod for each writer at the same time, and returns the
// last resourceVersion of them.
func (f *fixture) createAtOnce(t *testing.T, s storage.Interface, namespace string) uint64 {
	t.Helper()
	var g errgroup.Group
	var versions [writers]uint64
	for w := range writers {
		g.Go(func() error {
			pod := &example.Pod{}
			name := fmt.Sprintf("%s/%d", namespace, w)
			if err := s.Create(f.ctx, Prefix+name, poddata.Pod(name), pod, 0); err != nil {
				return fmt.Errorf("a creation beside others fails: %w", err)
			}
			var err error
			versions[w], err = versioner.ObjectResourceVersion(pod)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return slices.Max(versions[:])
}

func listsBesideWrites(t *testing.T, f *fixture, s storage.Interface) {
	for round := range concurrentRounds {
		scope := selected{key: fmt.Sprintf("%sround-%d", Prefix, round), recursive: true, predicate: storage.Everything}
		lists := []*example.PodList{f.list(t, s, scope.key, at{})}
		h := &history{}
		var g errgroup.Group
		g.Go(func() error {
			for i := range 2 {
				life, err := f.life(s, fmt.Sprintf("round-%d/%d", round, i), false)
				if err != nil {
					return err
				}
				h.changes = append(h.changes, life...)
			}
			return nil
		})
		var err error
		for done := false; !done && err == nil; {
			var list *example.PodList
			if list, err = f.tryList(s, scope.key, at{}); err == nil {
				lists = append(lists, list)
				done = len(list.Items) == 2 && list.Items[1].Labels["app"] == "y"
			}
		}
		if wrong := g.Wait(); wrong != nil {
			t.Fatal(wrong)
		}
		if err != nil {
			t.Fatalf("round %d: a LIST beside writes fails: %v", round, err)
		}
		for _, list := range lists {
			rv := rvOfList(t, list)
			samePods(t, fmt.Sprintf("round %d: a LIST that says it is at %d", round, rv), h.at(rv, scope), list.Items)
		}
	}
}
