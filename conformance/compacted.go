// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/kube-watchcache/watchcache/cacher"
)

// compactionClauses are about a history that the backend has let go of: who
// needs it is told, and nobody is told a part of it.
func compactionClauses() []clause {
	clauses := append(compactionSuites(),
		clause{
			name: "StorageWatch",
			rule: "a watch of the storage from before a compaction gets 410 Expired, one from after it everything: never a gap",
			run:  func(t *testing.T, f *fixture) { watchCompacted(t, f, watch.Modified) },
		},
		clause{
			name: "StorageWatchAtDeletion",
			rule: "a compaction that ends with a deletion does not take its event from a watch that is not told of the compaction",
			run:  func(t *testing.T, f *fixture) { watchCompacted(t, f, watch.Deleted) },
		},
		clause{
			name: "StorageList",
			rule: "a LIST of the storage at exactly a resourceVersion from before a compaction gets 410 Expired, one from after it what was there",
			run:  listCompacted,
		},
		clause{
			name: "StorageContinue",
			rule: "a continue token of the storage from before a compaction gets 410 Expired, and with it a token to go on at the latest version",
			run:  func(t *testing.T, f *fixture) { continueCompacted(t, f, cached{}) },
		},
		clause{
			name: "CacherList",
			rule: "with a cacher, a LIST at exactly a resourceVersion that storage and window have let go of gets 410 Expired",
			run:  cachedListCompacted,
		},
		clause{
			name: "CacherContinue",
			rule: "with a cacher, a continue token that storage has let go of gets its page, as it was, or 410 Expired, and with it a token to go on at the latest version",
			run: func(t *testing.T, f *fixture) {
				continueCompacted(t, f, f.cache(t, tinyWindow))
			},
		},
		clause{
			name: "CacherAway",
			rule: "a cacher whose storage was away, and has compacted meanwhile, lists again: reads are right, and a watch goes on without a gap or ends",
			run:  cacherAway,
		})
	for i := range clauses {
		clauses[i].needs |= compaction
		clauses[i].alone = true
	}
	return clauses
}

func (f *fixture) compact(t *testing.T, rv uint64) {
	t.Helper()
	if err := f.backend.Compact(f.ctx, rv); err != nil {
		t.Fatalf("Backend.Compact up to %d fails: %v", rv, err)
	}
}

// compactInTheMiddle writes a history and compacts half of it, up to a change
// of the given kind.
func compactInTheMiddle(t *testing.T, f *fixture, kind watch.EventType) (h *history, compacted uint64) {
	t.Helper()
	h = f.begin(t, f.raw)
	h.write(t, f, f.raw)
	for _, e := range h.changes[len(h.changes)/2:] {
		if e.kind == kind {
			f.compact(t, e.rv)
			return h, e.rv
		}
	}
	panic(fmt.Sprintf("conformance: the script has no %s in its second half", kind))
}

func watchCompacted(t *testing.T, f *fixture, kind watch.EventType) {
	h, compacted := compactInTheMiddle(t, f, kind)
	from := h.versions()
	watches := make([]*observer, len(from))
	refused := make([]error, len(from))
	for i, rv := range from {
		what := fmt.Sprintf("a watch from resourceVersion %d, compacted is what is before %d,", rv, compacted)
		watches[i], refused[i] = f.tryObserve(t, f.raw, what, Prefix, everything.since(rv))
	}
	h.play(t, f, f.raw, step{pod: "a/later"})
	for i, rv := range from {
		what := fmt.Sprintf("a watch from resourceVersion %d, compacted is what is before %d,", rv, compacted)
		want, err := h.after(rv), refused[i]
		if err == nil {
			first := watches[i].next(t, "either ERROR 410 or "+want[0].String())
			if first.kind != watch.Error {
				watches[i].mustGoOn(t, []event{first}, want)
				continue
			}
			err = first.err
		}
		switch {
		case rv >= compacted:
			t.Fatalf("%s fails: %v", what, err)
		case want[0].rv < compacted:
			mustExpire(t, what, err)
		}
		// The first change that is kept may lack what it changed. Then it can't
		// be told, and any error is better than a wrong event.
	}
}

func listCompacted(t *testing.T, f *fixture) {
	h, compacted := compactInTheMiddle(t, f, watch.Modified)
	for _, rv := range h.versions() {
		what := fmt.Sprintf("a LIST at exactly %d, compacted is what is before %d,", rv, compacted)
		list, err := f.tryList(f.raw, Prefix, exactly(rv))
		switch {
		case rv < compacted:
			mustExpire(t, what, err)
		case err != nil:
			t.Fatalf("%s fails: %v", what, err)
		default:
			samePods(t, what, h.at(rv, everything), list.Items)
		}
	}
	samePods(t, "a LIST after a compaction", h.at(h.last(), everything), f.list(t, f.raw, Prefix, at{}).Items)
}

func cachedListCompacted(t *testing.T, f *fixture) {
	c := f.cache(t, tinyWindow)
	h, compacted := compactInTheMiddle(t, f, watch.Modified)
	f.letGo(t, c, h, compacted)
	refused := 0
	for _, rv := range h.versions() {
		what := fmt.Sprintf("a LIST at exactly %d, compacted is what is before %d,", rv, compacted)
		list, err := f.tryList(c, Prefix, exactly(rv))
		switch {
		case rv < compacted:
			mustExpire(t, what, err)
			refused++
		case err != nil:
			t.Fatalf("%s fails: %v", what, err)
		default:
			samePods(t, what, h.at(rv, everything), list.Items)
		}
	}
	if refused == 0 {
		t.Fatal("the suite is wrong: nothing was compacted")
	}
}

// continueCompacted reads a page, compacts what it was of, and reads on: from
// the storage, or from a cacher. A cacher keeps what its tokens are for, and
// serves it until it is told of the compaction.
func continueCompacted(t *testing.T, f *fixture, c cached) {
	h := f.begin(t, f.raw)
	h.write(t, f, f.raw)
	s := f.raw
	if c.cacher != nil {
		s = c
	}
	page := f.list(t, s, Prefix, at{limit: 2})
	if page.Continue == "" {
		t.Fatalf("a page of 2 of %d objects has no continue token", len(h.at(h.last(), everything)))
	}
	listed := rvOfList(t, page)
	h.play(t, f, f.raw, step{pod: "b/9"})
	h.play(t, f, f.raw, step{pod: "b/9", attrs: []string{"app=x"}})
	if c.cacher != nil {
		f.letGo(t, c, h, listed)
	}
	f.compact(t, h.last())
	what := fmt.Sprintf("the next page of a LIST at %d, compacted is what is before %d,", listed, h.last())
	next, err := f.tryList(s, Prefix, at{next: page.Continue})
	if err == nil && c.cacher != nil {
		if rv := rvOfList(t, next); rv != listed {
			t.Fatalf("%s is at %d, want the version of the token or 410 Expired", what, rv)
		}
		samePods(t, what, following(t, h.at(listed, everything), page), next.Items)
		return
	}
	if err == nil {
		t.Fatalf("%s has %d objects, want 410 Expired", what, len(next.Items))
	}
	mustExpire(t, what, err)
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().ListMeta.Continue == "" {
		t.Fatalf("%s fails without a token to go on at the latest version: %v", what, err)
	}
	rest := f.list(t, s, Prefix, at{next: status.Status().ListMeta.Continue})
	if rv := rvOfList(t, rest); rv < h.last() {
		t.Errorf("what was asked for at the latest version is at %d, the last write was at %d", rv, h.last())
	}
	samePods(t, "the rest at the latest version", following(t, h.at(h.last(), everything), page), rest.Items)
}

// following returns those of pods that come after a page.
func following(t *testing.T, pods []example.Pod, page *example.PodList) (rest []example.Pod) {
	t.Helper()
	for _, pod := range pods {
		if keyOf(t, &pod) > keyOf(t, &page.Items[len(page.Items)-1]) {
			rest = append(rest, pod)
		}
	}
	return rest
}

func cacherAway(t *testing.T, f *fixture) {
	between := interpose(f.store)
	c := f.cache(t, func(config *cacher.Config) { config.Storage = between })
	h := f.begin(t, f.raw)
	o := f.observe(t, c, "a watch over a storage that was away", Prefix, everything.since(h.start))
	h.play(t, f, f.raw, step{pod: "b/gone"})
	o.mustTell(t, h.changes)

	back := between.goAway(errors.New("the storage is away"))
	h.play(t, f, f.raw, step{pod: "b/gone", remove: true})
	h.write(t, f, f.raw)
	h.play(t, f, f.raw, step{pod: "a/1"})
	h.play(t, f, f.raw, step{pod: "a/1", attrs: []string{"app=x"}})
	f.compact(t, h.last())
	h.play(t, f, f.raw, step{pod: "b/new"})
	back()

	samePods(t, "a LIST after the storage was away", h.at(h.last(), everything), f.list(t, c, Prefix, at{rv: h.last()}).Items)
	rest := h.after(h.changes[0].rv)
	for i := 0; i < len(rest); i++ {
		e, open := o.last(t, "either the rest of the events, its end, or ERROR 410")
		if !open {
			return
		}
		if e.kind == watch.Error {
			mustExpire(t, o.what, e.err)
			return
		}
		sameEvents(t, o.what, rest[i:i+1], []event{e})
	}
}
