// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package watchcache

import (
	"fmt"
	"maps"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// seal is a private copy of a published element, for later comparison (W5).
type seal struct {
	object runtime.Object
	labels labels.Set
	rv     uint64
}

func (e *Element) seal() {
	e.sealed = seal{labels: maps.Clone(e.Labels), rv: e.RV}
	if e.Object != nil {
		e.sealed.object = e.Object.DeepCopyObject()
	}
}

func (e *Element) checkSeal() {
	assert(e.sealed.rv == e.RV, "W5", "%q: resourceVersion was changed from %d to %d", e.Key, e.sealed.rv, e.RV)
	assert(maps.Equal(e.sealed.labels, e.Labels), "W5", "%q: labels were changed from %v to %v", e.Key, e.sealed.labels, e.Labels)
	same := reflect.DeepEqual(e.sealed.object, e.Object) || equality.Semantic.DeepEqual(e.sealed.object, e.Object) // the first for types with unexported fields
	assert(same, "W5", "%q: the object at %d was changed", e.Key, e.RV)
}

// checkRV panics if the snapshot has an element written after it, a duplicate, or a wrong number
// of elements (W2).
func (s *Snapshot) checkRV() {
	n, last := 0, ""
	s.Range("", "", func(e *Element) bool {
		assert(e.RV <= s.rv, "W2", "%q at %d is in the snapshot at %d", e.Key, e.RV, s.rv)
		assert(n == 0 || e.Key > last, "W2", "%q comes after %q in the snapshot at %d", e.Key, last, s.rv)
		n, last = n+1, e.Key
		return true
	})
	assert(n == s.Len(), "W2", "%d elements of %d are in the snapshot at %d", n, s.Len(), s.rv)
}

func assert(holds bool, invariant, format string, args ...any) {
	if !holds {
		panic(invariant + ": " + fmt.Sprintf(format, args...))
	}
}
