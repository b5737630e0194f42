// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// object is one state of an object, at the resourceVersion of its write. Each
// write has a number of its own, which its object carries as an annotation, so that two states
// are never taken for one.
type object struct {
	name string // namespace/name
	rv   uint64
	pod  *example.Pod
}

const writeAnnotation = "write"

// show is an object with its content, at a resourceVersion.
func show(pod *example.Pod, rv string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s@%s", pod.Namespace, pod.Name, rv)
	for _, key := range slices.Sorted(maps.Keys(pod.Labels)) {
		b.WriteString(" " + key + "=" + pod.Labels[key])
	}
	if pod.Spec.NodeName != "" {
		b.WriteString(" spec.nodeName=" + pod.Spec.NodeName)
	}
	b.WriteString(" #" + pod.Annotations[writeAnnotation])
	return b.String()
}

func (o *object) String() string { return o.at(o.rv) }

func (o *object) at(rv uint64) string { return show(o.pod, fmt.Sprint(rv)) }

// change is one write: an object before and after it, nil where there was none.
type change struct {
	rv            uint64
	before, after *object
}

// history is everything that was written, in order. Nothing is ever forgotten, but
// for what a restored backup does not have.
type history struct {
	rv      uint64
	changes []change
	// states are the states by name before the first change, after it, and so on.
	states []map[string]*object
	writes int
	// gone is the writes that a restored backup does not have, as "name@version".
	gone map[string]bool
	// compacted is what the storage has compacted.
	compacted uint64
}

func newHistory() *history {
	return &history{rv: 1, states: []map[string]*object{{}}}
}

// add notes a write at a resourceVersion. twin: a history that is gone has another
// write of the object at that version, so that nobody can tell the two apart.
func (h *history) add(rv uint64, name string, after *example.Pod) (twin bool) {
	state := h.states[len(h.states)-1]
	c := change{rv: rv, before: state[name]}
	state = maps.Clone(state)
	if after == nil {
		delete(state, name)
	} else {
		c.after = &object{name: name, rv: rv, pod: after}
		state[name] = c.after
	}
	h.rv = rv
	h.changes, h.states = append(h.changes, c), append(h.states, state)
	return h.gone[fmt.Sprintf("%s@%d", name, rv)]
}

// whole returns how many changes there are up to rv.
func (h *history) whole(rv uint64) int {
	n := len(h.changes)
	for n > 0 && h.changes[n-1].rv > rv {
		n--
	}
	return n
}

// restore forgets what came after rv.
func (h *history) restore(rv uint64) {
	n := h.whole(rv)
	if h.gone == nil {
		h.gone = map[string]bool{}
	}
	for _, c := range h.changes[n:] {
		if c.after != nil {
			h.gone[fmt.Sprintf("%s@%d", c.after.name, c.rv)] = true
		}
	}
	h.rv, h.changes, h.states = rv, h.changes[:n:n], h.states[:n+1:n+1]
}

func (h *history) current() map[string]*object { return h.states[len(h.states)-1] }

// selection is what a client asks for, applied to one object after the other.
type selection struct {
	key       string // with the resource's prefix
	recursive bool
	predicate storage.SelectionPredicate
}

func newSelection(q Query) selection {
	return selection{key: poddata.Prefix + q.In, recursive: !q.One, predicate: poddata.Predicate(q.Labels, q.Fields)}
}

func (s *selection) has(o *object) bool {
	if o == nil {
		return false
	}
	key := poddata.Prefix + o.name
	if key != s.key && (!s.recursive || !strings.HasPrefix(key, s.key)) {
		return false
	}
	matches, err := s.predicate.Matches(o.pod)
	return err == nil && matches
}

// of returns what is selected of a state, in the order of keys.
func (s *selection) of(state map[string]*object) (out []*object) {
	for _, name := range slices.Sorted(maps.Keys(state)) {
		if s.has(state[name]) {
			out = append(out, state[name])
		}
	}
	return out
}

// inScope returns how many objects of a state are in the range of keys, after the
// given one.
func (s *selection) inScope(state map[string]*object, after string) (n int) {
	for name := range state {
		key := poddata.Prefix + name
		if (key == s.key || (s.recursive && strings.HasPrefix(key, s.key))) && key > after {
			n++
		}
	}
	return n
}

// event returns what a watcher is told of a change, "" if nothing.
func (s *selection) event(c change) string {
	was, is := s.has(c.before), s.has(c.after)
	switch {
	case was && is:
		return "MODIFIED " + c.after.String()
	case is:
		return "ADDED " + c.after.String()
	case was:
		return "DELETED " + c.before.at(c.rv)
	}
	return ""
}
