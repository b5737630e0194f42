// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// end is the last step of a history: a client that watches everything waits for
// it, because the absence of events cannot be awaited. endKey is its key.
var end = step{pod: "a/end", attrs: []string{"app=x", "tier=back", "spec.nodeName=n1", "status.phase=Running"}}

const endKey = Prefix + "a/end"

// step is one write of the script: to create a Pod, to update it if it is
// there, or to remove it.
type step struct {
	pod    string // "namespace/name"
	attrs  []string
	remove bool
}

// script has every kind of change: into a selection, inside and out of it,
// deletion, and creation under a name that was used before; in namespaces of
// which one's name begins with the other's.
var script = []step{
	{pod: "a/1", attrs: []string{"app=x"}},
	{pod: "a/2"},
	{pod: "b/1", attrs: []string{"app=x", "spec.nodeName=n1"}},
	{pod: "a/1", attrs: []string{"app=x", "tier=back"}},
	{pod: "a/2", attrs: []string{"app=x"}},
	{pod: "ab/1", attrs: []string{"app=x", "spec.nodeName=n1"}},
	{pod: "a/1", attrs: []string{"app=y"}},
	{pod: "a/1", attrs: []string{"app=y", "spec.nodeName=n1"}},
	{pod: "a/2", remove: true},
	{pod: "b/1", attrs: []string{"app=x", "spec.nodeName=n2"}},
	{pod: "a/2", attrs: []string{"app=x", "spec.nodeName=n1"}},
	{pod: "a/1", attrs: []string{"app=x", "spec.nodeName=n1", "status.phase=Running"}},
	{pod: "ab/1", attrs: []string{"app=y", "spec.nodeName=n1"}},
	{pod: "a/2", attrs: []string{"app=x", "spec.nodeName=n1", "status.phase=Running"}},
	{pod: "b/1", remove: true},
	{pod: "a/1", attrs: []string{"spec.nodeName=n1", "status.phase=Running"}},
	{pod: "a/12", attrs: []string{"app=x"}},
	{pod: "ab/1", remove: true},
	{pod: "a/1", attrs: []string{"app=x"}},
	{pod: "b/2", attrs: []string{"tier=back"}},
}

// history is what was written, and so what everybody must be told.
type history struct {
	// start is the resourceVersion before the first write.
	start uint64
	// changes are the writes as events, in order, and before what was there.
	changes []event
	before  []*example.Pod
	now     map[string]*example.Pod
}

// begin starts a history of what is written from now on. The store is empty.
func (f *fixture) begin(t *testing.T, s storage.Interface) *history {
	t.Helper()
	return &history{start: rvOfList(t, f.list(t, s, Prefix, at{})), now: map[string]*example.Pod{}}
}

// write plays the whole script and ends it.
func (h *history) write(t *testing.T, f *fixture, s storage.Interface) {
	t.Helper()
	for _, step := range script {
		h.play(t, f, s, step)
	}
	h.play(t, f, s, end)
}

// play writes one step and notes it.
func (h *history) play(t *testing.T, f *fixture, s storage.Interface, step step) event {
	t.Helper()
	wanted := poddata.Pod(step.pod, step.attrs...)
	key := keyOf(t, wanted)
	wanted.Annotations = map[string]string{"write": fmt.Sprint(len(h.changes))}
	before := h.now[key]
	e := event{key: key}
	switch {
	case step.remove:
		e.kind = watch.Deleted
		out := f.remove(t, s, key)
		e.rv, e.object = rvOf(t, out), before.DeepCopy()
		e.object.ResourceVersion = out.ResourceVersion
		delete(h.now, key)
	case before == nil:
		e.kind = watch.Added
		wanted.UID = types.UID(fmt.Sprintf("uid-%d", len(h.changes)))
		e.object = f.create(t, s, wanted)
		h.now[key] = e.object
	default:
		e.kind = watch.Modified
		wanted.UID = before.UID
		e.object = f.update(t, s, key, func(pod *example.Pod) {
			rv := pod.ResourceVersion
			*pod = *wanted
			pod.ResourceVersion = rv
		})
		h.now[key] = e.object
	}
	e.rv = rvOf(t, e.object)
	if last := h.last(); e.rv <= last {
		t.Fatalf("the write %v has a resourceVersion that is not above %d, that of the write before", e, last)
	}
	h.changes, h.before = append(h.changes, e), append(h.before, before)
	return e
}

// last returns the resourceVersion of the last write.
func (h *history) last() uint64 {
	if len(h.changes) == 0 {
		return h.start
	}
	return h.changes[len(h.changes)-1].rv
}

// versions returns every resourceVersion at which there was a state to see:
// the start, and that of each write.
func (h *history) versions() []uint64 {
	all := []uint64{h.start}
	for _, e := range h.changes {
		all = append(all, e.rv)
	}
	return all
}

// after returns what a watcher of everything is told after rv.
func (h *history) after(rv uint64) []event { return h.toldAfter(rv, everything) }

// toldAfter returns what a watcher of a selection is told after rv: what it
// sees appear is ADDED, what it sees vanish DELETED with the content that it
// saw last, whatever was written.
func (h *history) toldAfter(rv uint64, sel selected) (told []event) {
	for i, e := range h.changes {
		if e.rv <= rv || !sel.covers(e.key) {
			continue
		}
		before := h.before[i]
		had := before != nil && sel.matches(before)
		has := e.kind != watch.Deleted && sel.matches(e.object)
		switch {
		case had && has:
			e.kind = watch.Modified
		case has:
			e.kind = watch.Added
		case had:
			e.kind, e.object = watch.Deleted, before.DeepCopy()
			e.object.ResourceVersion = version(e.rv)
		default:
			continue
		}
		told = append(told, e)
	}
	return told
}

func (s selected) covers(key string) bool {
	return key == s.key || (s.recursive && strings.HasPrefix(key, strings.TrimSuffix(s.key, "/")+"/"))
}

func (s selected) matches(pod *example.Pod) bool {
	ok, err := s.predicate.Matches(pod)
	if err != nil {
		panic(fmt.Sprintf("conformance: %v", err))
	}
	return ok
}

// at returns the state at exactly rv, in the order of keys.
func (h *history) at(rv uint64, sel selected) []example.Pod {
	state := map[string]example.Pod{}
	for _, e := range h.changes {
		if e.rv > rv {
			break
		}
		delete(state, e.key)
		if e.kind != watch.Deleted && sel.covers(e.key) && sel.matches(e.object) {
			state[e.key] = *e.object
		}
	}
	var pods []example.Pod
	for _, key := range slices.Sorted(maps.Keys(state)) {
		pods = append(pods, state[key])
	}
	return pods
}

// sameEvents fails unless a watcher was told exactly what it must be.
func sameEvents(t *testing.T, what string, want, got []event) {
	t.Helper()
	if differs := difference(want, got); differs != "" {
		t.Fatalf("%s: %s; the events were\n%s", what, differs, lines(got))
	}
}

// difference says where two sequences part, and how; "" if they don't.
func difference(want, got []event) string {
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("there is a gap: %v is missing", want[i])
		case i >= len(want):
			return fmt.Sprintf("%v is too much", got[i])
		case got[i].same(want[i]):
		case slices.ContainsFunc(want[i:], got[i].same):
			return fmt.Sprintf("there is a gap: %v is missing", want[i])
		case slices.ContainsFunc(got[i:], want[i].same):
			return fmt.Sprintf("%v is too much", got[i])
		default:
			return fmt.Sprintf("number %d is\n  %v, expected was\n  %v", i, got[i], want[i])
		}
	}
	return ""
}

func (e event) same(other event) bool {
	return e.kind == other.kind && e.rv == other.rv && e.key == other.key && samePod(e.object, other.object)
}

func samePod(a, b *example.Pod) bool { return apiequality.Semantic.DeepEqual(a, b) }

// samePods fails unless a list has exactly what it must have.
func samePods(t *testing.T, what string, want, got []example.Pod) {
	t.Helper()
	if differs := difference(listed(t, want), listed(t, got)); differs != "" {
		t.Fatalf("%s: %s; it has %d objects, expected were %d", what, differs, len(got), len(want))
	}
}

// listed is the objects of a list in the form of events.
func listed(t *testing.T, pods []example.Pod) (out []event) {
	t.Helper()
	for i := range pods {
		out = append(out, event{kind: "object", key: keyOf(t, &pods[i]), rv: rvOf(t, &pods[i]), object: &pods[i]})
	}
	return out
}

func lines(events []event) string {
	var s strings.Builder
	for _, e := range events {
		fmt.Fprintf(&s, "  %v\n", e)
	}
	return s.String()
}
