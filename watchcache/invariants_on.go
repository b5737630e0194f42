// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package watchcache

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// seal is a private copy of what was published, to compare with later (W5).
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
	assert(equality.Semantic.DeepEqual(e.sealed.object, e.Object), "W5", "%q: the object at %d was changed", e.Key, e.RV)
}

// checkRV looks for elements from after the snapshot (W2).
func (s *Snapshot) checkRV() {
	s.Range("", "", func(e *Element) bool {
		assert(e.RV <= s.rv, "W2", "%q at %d is in the snapshot at %d", e.Key, e.RV, s.rv)
		return true
	})
}

func assert(holds bool, invariant, format string, args ...any) {
	if !holds {
		panic(invariant + ": " + fmt.Sprintf(format, args...))
	}
}
