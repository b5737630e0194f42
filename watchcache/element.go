// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Element is one object as stored in the cache. It is immutable once passed to a State (W5).
type Element struct {
	// Key is the object's storage key, including the resource prefix.
	Key string
	// RV is the resourceVersion of the write that created this element.
	RV uint64
	// Object is the decoded object. Its metadata contains RV.
	Object runtime.Object
	// Labels are the object's labels, usually the object's own map.
	Labels labels.Set
	// Fields are the object's selectable fields.
	Fields Fields
	// Size is the caller's estimate of the memory of Object, in bytes.
	Size int64

	// sealed is empty without -tags invariants. Keep it before the last field: Go pads a struct
	// that ends in a field of size 0.
	sealed    seal
	encodings atomic.Pointer[Encodings]
}

// Encodings returns the object's serializations. A reference to them does not keep the element in
// memory.
func (e *Element) Encodings() *Encodings {
	if e.encodings.Load() == nil {
		e.encodings.CompareAndSwap(nil, new(Encodings))
	}
	return e.encodings.Load()
}

// elementOverhead is the memory of an element beyond its object, in bytes, i.e. the struct, its key,
// its field values and its tree entries.
const elementOverhead = 320

func (e *Element) bytes() int64 { return e.Size + elementOverhead }

// SelectsAs reports whether e and other have equal labels and fields, i.e. every selector selects
// both or neither.
func (e *Element) SelectsAs(other *Element) bool {
	return e.Fields.equal(&other.Fields) && maps.Equal(e.Labels, other.Labels)
}

// share reuses the memory of the previous element of the same key for the key, and for equal field
// values. Call it before publishing e.
func (e *Element) share(previous *Element) {
	e.Key = previous.Key
	if e.Fields.equal(&previous.Fields) {
		e.Fields = previous.Fields
	}
}

// Fields are an object's selectable fields, as a slice of values and a slice of names shared by all
// objects with the same fields. A map would take several times the memory.
type Fields struct {
	names  []string // sorted, shared, immutable
	values []string // parallel to names
}

var _ fields.Fields = (*Fields)(nil)

// Has reports whether the object has the field.
func (f *Fields) Has(name string) bool { return f.index(name) >= 0 }

// Get returns the value of the field, "" if the object does not have it.
func (f *Fields) Get(name string) string {
	if i := f.index(name); i >= 0 {
		return f.values[i]
	}
	return ""
}

// Len returns the number of fields.
func (f *Fields) Len() int { return len(f.names) }

func (f *Fields) equal(other *Fields) bool {
	shared := len(f.values) > 0 && len(f.values) == len(other.values) && &f.values[0] == &other.values[0]
	return shared || slices.Equal(f.values, other.values) && slices.Equal(f.names, other.names)
}

// index scans: comparing about ten names, mostly of different lengths, is faster than hashing one.
func (f *Fields) index(name string) int { return slices.Index(f.names, name) }

// FieldNames interns the names of Fields. It is not safe for concurrent use.
type FieldNames struct {
	last  []string
	known map[string][]string
}

// Compact converts a field set to Fields.
func (n *FieldNames) Compact(set fields.Set) Fields {
	if len(set) == 0 {
		return Fields{}
	}
	if values, ok := valuesOf(set, n.last); ok {
		return Fields{names: n.last, values: values}
	}
	names := slices.Sorted(maps.Keys(set))
	id := strings.Join(names, "\x00")
	known, ok := n.known[id]
	if !ok || !slices.Equal(known, names) { // a name may contain the separator
		if n.known == nil {
			n.known = make(map[string][]string)
		}
		known = names
		n.known[id] = known
	}
	n.last = known
	values, _ := valuesOf(set, known)
	return Fields{names: known, values: values}
}

// valuesOf returns the values of set in the order of names, false unless set has exactly these
// names.
func valuesOf(set fields.Set, names []string) ([]string, bool) {
	if len(set) != len(names) {
		return nil, false
	}
	values := make([]string, len(names))
	for i, name := range names {
		value, ok := set[name]
		if !ok {
			return nil, false
		}
		values[i] = value
	}
	return values, true
}

// Encodings caches the serializations of one element, by an identifier of version, format and
// framing. It is the only mutable part of a published element.
type Encodings struct {
	mu struct {
		sync.Mutex
		entries []*encoding // usually fewer than five
	}
}

// encoding is one serialization. once publishes bytes and err.
type encoding struct {
	id    string
	once  sync.Once
	bytes []byte
	err   error
}

// Get returns the serialization with the identifier, and calls encode if there is none. Concurrent
// callers share one call; created is true for the caller whose encode ran. Get caches an error
// like a result; call Drop to try again.
func (e *Encodings) Get(id string, encode func() ([]byte, error)) (bytes []byte, created bool, err error) {
	entry := e.entry(id)
	entry.once.Do(func() {
		entry.err = errAbandoned // for the case that encode panics
		entry.bytes, entry.err = encode()
		created = true
	})
	if entry.err == errAbandoned {
		e.Drop(id)
	}
	return entry.bytes, created, entry.err
}

// entry returns the serialization with the identifier, and adds an empty one if there is none.
func (e *Encodings) entry(id string) *encoding {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.IndexFunc(e.mu.entries, func(entry *encoding) bool { return entry.id == id })
	if i < 0 {
		i = len(e.mu.entries)
		e.mu.entries = append(e.mu.entries, &encoding{id: id})
	}
	return e.mu.entries[i]
}

// Drop removes the serialization with the identifier. Bytes returned by Get stay valid.
func (e *Encodings) Drop(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.entries = slices.DeleteFunc(e.mu.entries, func(entry *encoding) bool { return entry.id == id })
}
