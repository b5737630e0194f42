// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
)

// Fields are an object's selectable fields, held as one slice of values whose
// names are shared by all objects with the same fields. A map for each object
// would take several times the memory.
//
// *Fields implements fields.Fields.
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

// index scans: resources have about ten fields, of mostly different lengths,
// which is faster to compare in turn than to hash.
func (f *Fields) index(name string) int {
	for i, n := range f.names {
		if n == name {
			return i
		}
	}
	return -1
}

// FieldNames interns the names of Fields. A FieldNames belongs to the one
// writer and is not safe for concurrent use.
type FieldNames struct {
	last  []string
	known map[string][]string
}

// Compact turns a field set into Fields. Compact allocates the values only,
// unless the set of names is new.
func (n *FieldNames) Compact(set fields.Set) Fields {
	if len(set) == 0 {
		return Fields{}
	}
	if values, ok := valuesOf(set, n.last); ok {
		return Fields{names: n.last, values: values}
	}
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	id := strings.Join(names, "\x00")
	if shared, ok := n.known[id]; ok && slices.Equal(shared, names) {
		names = shared
	} else {
		if n.known == nil {
			n.known = make(map[string][]string)
		}
		n.known[id] = names
	}
	n.last = names
	values, _ := valuesOf(set, names)
	return Fields{names: names, values: values}
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
