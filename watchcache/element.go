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

// Element is one object as the cache holds it. An element is immutable once it was
// handed to a State (W5).
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
	// Size is the caller's estimate of the memory of Object, in bytes.
	Size int64

	// Empty without -tags invariants, and not the last field: Go pads a struct that ends in
	// a field of size 0.
	sealed    seal
	encodings atomic.Pointer[Encodings]
}

// Encodings returns the object's serializations, which are made when first
// asked for. A reference to them does not keep the element in memory.
func (e *Element) Encodings() *Encodings {
	if e.encodings.Load() == nil {
		e.encodings.CompareAndSwap(nil, new(Encodings))
	}
	return e.encodings.Load()
}

// elementOverhead is the memory, in bytes, of an element beyond the object: the struct, its
// key, its field values, the tree item.
const elementOverhead = 320

func (e *Element) bytes() int64 { return e.Size + elementOverhead }

// SelectsAs reports whether e and other have equal labels and fields, so that
// every selector selects both or neither.
func (e *Element) SelectsAs(other *Element) bool {
	return e.Fields.equal(&other.Fields) && maps.Equal(e.Labels, other.Labels)
}

// share makes e use the memory of the element that it replaces for the key, and for the
// field values if they are equal. Call share before e is published.
func (e *Element) share(previous *Element) {
	e.Key = previous.Key
	if e.Fields.equal(&previous.Fields) {
		e.Fields = previous.Fields
	}
}

// Fields are an object's selectable fields: one slice of values, whose names are shared by
// all objects with the same fields. A map would take several times the memory.
type Fields struct {
	names  []string // sorted; shared, never written
	values []string // parallel to names
}

var _ fields.Fields = (*Fields)(nil)

// Has reports whether the object has the field.
func (f *Fields) Has(name string) bool { return f.index(name) >= 0 }

// Get returns the value of the field, "" if the object does not have the field.
func (f *Fields) Get(name string) string {
	if i := f.index(name); i >= 0 {
		return f.values[i]
	}
	return ""
}

// Len returns the number of fields.
func (f *Fields) Len() int { return len(f.names) }

func (f *Fields) equal(other *Fields) bool {
	if len(f.values) > 0 && len(f.values) == len(other.values) && &f.values[0] == &other.values[0] {
		return true // shared
	}
	return slices.Equal(f.values, other.values) && slices.Equal(f.names, other.names)
}

// index scans: about ten names, of mostly different lengths, are compared sooner than hashed.
func (f *Fields) index(name string) int { return slices.Index(f.names, name) }

// FieldNames interns the names of Fields. It is not safe for concurrent use.
type FieldNames struct {
	last  []string
	known map[string][]string
}

// Compact turns a field set into Fields.
func (n *FieldNames) Compact(set fields.Set) Fields {
	if len(set) == 0 {
		return Fields{}
	}
	if values, ok := valuesOf(set, n.last); ok {
		return Fields{names: n.last, values: values}
	}
	names := slices.Sorted(maps.Keys(set))
	id := strings.Join(names, "\x00")
	if n.last = n.known[id]; !slices.Equal(n.last, names) {
		if n.known == nil {
			n.known = make(map[string][]string)
		}
		n.last, n.known[id] = names, names
	}
	values, _ := valuesOf(set, names)
	return Fields{names: n.last, values: values}
}

// valuesOf returns set's values in the order of names, and whether names are
// exactly set's names.
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

// Encodings are the serializations of one element, by an identifier of version, format and
// framing: the only part of an element that is made after it was published.
type Encodings struct {
	mu struct {
		sync.Mutex
		made []*encoding // a handful at most
	}
}

// encoding is one serialization. bytes and err never change once made.
type encoding struct {
	id    string
	once  sync.Once
	bytes []byte
	err   error
}

// Get returns the serialization with the identifier, and calls encode if there
// is none yet; created is true for the one caller whose encode was called.
// Concurrent callers wait for that one. An error of encode is kept and returned
// like a result; call Drop to try again.
func (e *Encodings) Get(id string, encode func() ([]byte, error)) (bytes []byte, created bool, err error) {
	made := e.find(id)
	made.once.Do(func() {
		made.err = errAbandoned // unless encode returns
		made.bytes, made.err = encode()
		created = true
	})
	if made.err == errAbandoned {
		e.Drop(id)
	}
	return made.bytes, created, made.err
}

// find returns the serialization with the identifier, or a new one that is not made yet.
func (e *Encodings) find(id string) *encoding {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.IndexFunc(e.mu.made, func(made *encoding) bool { return made.id == id })
	if i < 0 {
		i = len(e.mu.made)
		e.mu.made = append(e.mu.made, &encoding{id: id})
	}
	return e.mu.made[i]
}

// Drop forgets the serialization with the identifier. Bytes that Get has returned stay valid.
func (e *Encodings) Drop(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.made = slices.DeleteFunc(e.mu.made, func(made *encoding) bool { return made.id == id })
}
