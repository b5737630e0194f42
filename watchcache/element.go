// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"maps"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Element is one object as the cache holds it. An element is immutable once it
// was handed to a State (W5): readers share it, and copy the object before they
// change anything in it.
type Element struct {
	// Key is the object's storage key, resource prefix included.
	Key string
	// RV is the resourceVersion of the write that made this element.
	RV uint64
	// Object is the decoded object. Its metadata carries RV.
	Object runtime.Object
	// Labels are the object's labels; usually the object's own map.
	Labels labels.Set
	// Fields are the object's selectable fields.
	Fields Fields
	// Size is the memory that Object takes with all that it refers to, in bytes,
	// as estimated by the caller. The window's byte budget counts this size.
	Size int64

	sealed    seal // empty without -tags invariants, and free if not the last
	encodings atomic.Pointer[Encodings]
}

// Encodings returns the object's serializations, which are made when first
// asked for. A reference to them does not keep the element in memory.
func (e *Element) Encodings() *Encodings {
	if encodings := e.encodings.Load(); encodings != nil {
		return encodings
	}
	e.encodings.CompareAndSwap(nil, new(Encodings))
	return e.encodings.Load()
}

// elementOverhead is the memory that an Element and its tree item take beyond
// the object itself, in bytes: the struct, its key, its field values, the tree
// item.
const elementOverhead = 320

func (e *Element) bytes() int64 { return e.Size + elementOverhead }

// SelectsAs reports whether e and other have equal labels and fields, so that
// every selector selects both or neither.
func (e *Element) SelectsAs(other *Element) bool {
	return e.Fields.equal(&other.Fields) && maps.Equal(e.Labels, other.Labels)
}

// share makes e use the memory of the element that it replaces where both are
// equal: the key, and the field values, which most updates leave as they are.
// Call share before e is published.
func (e *Element) share(previous *Element) {
	e.Key = previous.Key
	if e.Fields.equal(&previous.Fields) {
		e.Fields = previous.Fields
	}
}
