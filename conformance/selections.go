// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// selectionClauses are about watches of a part: what enters it is ADDED, what
// leaves it DELETED.
var selectionClauses = []storeClause{
	{
		name: "LabelTransitions",
		rule: "to a watch with a label selector an object that comes to match is ADDED, one that ceases to is DELETED with its previous content and the write's resourceVersion, one that goes on to is MODIFIED",
		run: transitions(
			selection{label: "app=x"},
			selection{label: "app!=x", end: step{pod: "a/no-x"}},
			selection{label: "app in (x,y)"},
			selection{label: "!tier", end: step{pod: "a/no-tier"}},
			selection{label: "app=x,tier=back"},
		),
	},
	{
		name: "FieldTransitions",
		rule: "to a watch with a field selector an object that comes to match is ADDED, one that ceases to is DELETED with its previous content and the write's resourceVersion, one that goes on to is MODIFIED",
		run: transitions(
			selection{field: "spec.nodeName=n1"},
			selection{field: "spec.nodeName!=n1", end: step{pod: "a/no-node"}},
			selection{field: "status.phase=Running"},
			selection{field: "spec.nodeName=n1,status.phase=Running", label: "app=x"},
		),
	},
	{
		name: "Scopes",
		rule: "a watch of a namespace or of one object is told of nothing outside it",
		run: transitions(
			selection{key: "a/"},
			selection{key: "ab/", end: step{pod: "ab/2"}},
			selection{key: "b/", label: "app=x", end: step{pod: "b/end", attrs: []string{"app=x"}}},
			selection{key: "a/1", single: true, end: step{pod: "a/1", attrs: []string{"tier=last"}}},
			selection{key: "a/1", single: true, label: "app=x", end: step{pod: "a/1", attrs: []string{"app=x"}}},
			selection{key: "a/", field: "metadata.name=1", end: step{pod: "a/1", attrs: []string{"tier=front"}}},
			selection{field: "metadata.name=1", end: step{pod: "b/1", attrs: []string{"tier=front"}}},
			selection{field: "metadata.namespace=ab", end: step{pod: "ab/3"}},
		),
	},
}

// selection is one part to watch.
type selection struct {
	// key is the scope under Prefix. single: it is one object's.
	key          string
	single       bool
	label, field string
	// end is a write that the selection matches, at the end. Without one, the
	// history's end is.
	end step
}

func (s selection) String() string {
	return fmt.Sprintf("a watch of %q with label selector %q and field selector %q", Prefix+s.key, s.label, s.field)
}

func (s selection) selected() selected {
	return selected{key: Prefix + s.key, recursive: !s.single, predicate: poddata.Predicate(s.label, s.field)}
}

// transitions plays the script to watches of all selections, which read along,
// and then to some that begin in the middle of it.
func transitions(selections ...selection) func(*testing.T, *fixture, storage.Interface) {
	return func(t *testing.T, f *fixture, s storage.Interface) {
		h := f.begin(t, s)
		var watches []*observer
		for _, sel := range selections {
			watches = append(watches, f.observe(t, s, sel.String(), Prefix+sel.key, sel.selected().since(h.start)))
		}
		for _, step := range playbook(selections) {
			before := h.last()
			h.play(t, f, s, step)
			for i, o := range watches {
				// If it was told of this by mistake, the next event shows it.
				if want := h.toldAfter(before, selections[i].selected()); len(want) > 0 {
					o.mustTell(t, want)
				}
			}
		}
		for i := 0; i < len(script); i += 4 {
			from := h.versions()[i]
			for n, sel := range selections {
				what := fmt.Sprintf("%v from resourceVersion %d", sel, from)
				watches[n] = f.observe(t, s, what, Prefix+sel.key, sel.selected().since(from))
			}
			for n, o := range watches {
				o.mustTell(t, h.toldAfter(from, selections[n].selected()))
			}
		}
	}
}

// playbook is the script, and then something to be told for each selection.
func playbook(selections []selection) []step {
	steps := append(slices.Clone(script), end)
	for _, sel := range selections {
		if sel.end.pod != "" {
			steps = append(steps, sel.end)
		}
	}
	return steps
}

// mustTell reads up to the last of the events and fails unless there were
// exactly these.
func (o *observer) mustTell(t *testing.T, want []event) {
	t.Helper()
	o.mustGoOn(t, nil, want)
}

// mustGoOn is mustTell when some events were read already.
func (o *observer) mustGoOn(t *testing.T, got, want []event) {
	t.Helper()
	if len(want) == 0 {
		t.Fatalf("the suite is wrong: %s is told nothing", o.what)
	}
	last := want[len(want)-1]
	for len(got) == 0 || got[len(got)-1].rv < last.rv {
		e := o.next(t, last.String())
		if e.kind == watch.Error {
			t.Fatalf("%s has ended with %v where it must bring %v", o.what, e, last)
		}
		if e.kind != watch.Bookmark {
			got = append(got, e)
		}
	}
	sameEvents(t, o.what, want, got)
}

// byKey orders events by key.
func byKey(a, b event) int { return cmp.Compare(a.key, b.key) }
