// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"maps"
	"strconv"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// object is one state of an object, at the resourceVersion of its write. Each
// write has a number of its own, which its object carries as an annotation, so that two states
// are never taken for one.
type object struct {
	name string // namespace/name
	key  string // in the storage
	rv   uint64
	pod  *example.Pod
	// labels and fields are what selectors see of it, and text is all of it.
	labels labels.Set
	fields fields.Set
	text   string
}

func newObject(name string, rv uint64, pod *example.Pod) *object {
	o := &object{name: name, key: poddata.Prefix + name, rv: rv, pod: pod}
	o.labels, o.fields, _ = poddata.Attrs(pod) // fails for what is no pod
	o.text = o.at(rv)
	return o
}

const writeAnnotation = "write"

// show is an object with its content, at a resourceVersion.
func show(pod *example.Pod, rv string) string {
	b := make([]byte, 0, 64)
	b = append(b, pod.Namespace...)
	b = append(b, '/')
	b = append(b, pod.Name...)
	b = append(b, '@')
	b = append(b, rv...)
	var few [4]string // so that most objects need no memory for their keys
	keys := few[:0]
	for key := range pod.Labels {
		i := len(keys)
		keys = append(keys, key)
		for ; i > 0 && keys[i-1] > key; i-- {
			keys[i] = keys[i-1]
		}
		keys[i] = key
	}
	for _, key := range keys {
		b = append(b, ' ')
		b = append(b, key...)
		b = append(b, '=')
		b = append(b, pod.Labels[key]...)
	}
	if pod.Spec.NodeName != "" {
		b = append(b, " spec.nodeName="...)
		b = append(b, pod.Spec.NodeName...)
	}
	b = append(b, " #"...)
	b = append(b, pod.Annotations[writeAnnotation]...)
	return string(b)
}

func (o *object) String() string { return o.text }

func (o *object) at(rv uint64) string { return show(o.pod, strconv.FormatUint(rv, 10)) }

// change is one write: an object before and after it, nil where there was none.
type change struct {
	rv            uint64
	before, after *object
}

// name is that of the object.
func (c change) name() string {
	if c.after != nil {
		return c.after.name
	}
	return c.before.name
}

// history is everything that was written, in order. Nothing is ever forgotten, but
// for what a restored backup does not have.
type history struct {
	rv      uint64
	changes []change
	// now is the state after all changes, by name.
	now    map[string]*object
	writes int
	// gone is the writes that a restored backup does not have.
	gone map[written]bool
	// inParts is the revisions that the storage was told to bring in parts; all
	// may be if anyInParts is set.
	inParts    map[uint64]bool
	anyInParts bool
	// compacted is what the storage has compacted.
	compacted uint64

	// then is the state after the first so many changes, which was looked at last.
	then      map[string]*object
	thenAfter int
}

// written is a write of an object.
type written struct {
	name string
	rv   uint64
}

func newHistory() *history {
	return &history{rv: 1, now: map[string]*object{}, then: map[string]*object{}, inParts: map[uint64]bool{}}
}

// add notes a write at a resourceVersion. twin: a history that is gone has another
// write of the object at that version, so that nobody can tell the two apart.
func (h *history) add(rv uint64, name string, after *example.Pod) (twin bool) {
	c := change{rv: rv, before: h.now[name]}
	if after != nil {
		c.after = newObject(name, rv, after)
	}
	c.apply(h.now)
	h.rv = rv
	h.changes = append(h.changes, c)
	return h.gone[written{name, rv}]
}

func (c change) apply(state map[string]*object) { set(state, c.name(), c.after) }

func set(state map[string]*object, name string, o *object) {
	if o == nil {
		delete(state, name)
	} else {
		state[name] = o
	}
}

// whole returns how many changes there are up to rv.
func (h *history) whole(rv uint64) int {
	n := len(h.changes)
	for n > 0 && h.changes[n-1].rv > rv {
		n--
	}
	return n
}

// state returns the state after the first n changes, by name. The state is valid
// until the next call of a method of h.
func (h *history) state(n int) map[string]*object {
	if n == len(h.changes) {
		return h.now
	}
	for ; h.thenAfter > n; h.thenAfter-- {
		c := h.changes[h.thenAfter-1]
		set(h.then, c.name(), c.before)
	}
	for ; h.thenAfter < n; h.thenAfter++ {
		h.changes[h.thenAfter].apply(h.then)
	}
	return h.then
}

// object returns an object after the first n changes, nil if there is none.
func (h *history) object(name string, n int) *object {
	for n--; n >= 0; n-- {
		if c := h.changes[n]; c.name() == name {
			return c.after
		}
	}
	return nil
}

// restore forgets what came after rv.
func (h *history) restore(rv uint64) {
	n := h.whole(rv)
	if h.gone == nil {
		h.gone = map[written]bool{}
	}
	for _, c := range h.changes[n:] {
		if c.after != nil {
			h.gone[written{c.after.name, c.rv}] = true
		}
	}
	if n == len(h.changes) {
		h.rv = rv
		return
	}
	h.now = maps.Clone(h.state(n))
	h.rv, h.changes = rv, h.changes[:n:n]
}
