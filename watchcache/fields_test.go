// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/watchcache"
)

var fieldSets = []fields.Set{
	nil,
	{},
	{"a": "1"},
	{"a": ""},
	{"a": "1", "b": "2"},
	{"b": "1", "c": ""},
	{"metadata.name": "x", "metadata.namespace": "y", "spec.nodeName": "", "status.phase": "Running"},
	{"": "empty name"},
	{"a\x00b": "1"}, // the same bytes as the next, joined
	{"a": "1", "b\x00c": "2"},
	{"a\x00b": "1", "c": "2"},
}

func requireSame(t require.TestingT, set fields.Set, f watchcache.Fields) {
	require.Equal(t, len(set), f.Len(), "%q", set)
	for _, other := range append([]fields.Set{set, {"nowhere": ""}}, fieldSets...) {
		for name := range other {
			require.Equal(t, set.Has(name), f.Has(name), "%q has %q", set, name)
			require.Equal(t, set.Get(name), f.Get(name), "%q get %q", set, name)
		}
	}
}

func TestFieldsKeepTheirValues(t *testing.T) {
	var names watchcache.FieldNames
	set := fields.Set{"a": "1", "b": "2"}
	before := names.Compact(set)
	set["a"] = "changed"
	after := names.Compact(set)
	require.Equal(t, "1", before.Get("a"))
	require.Equal(t, "changed", after.Get("a"))
	require.Equal(t, "", (&watchcache.Fields{}).Get("a"))
}

func TestCompactAgreesWithAnySet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var names watchcache.FieldNames
		name := rapid.SampledFrom([]string{"", "a", "b", "c", "a\x00b", "\x00", "metadata.name"})
		for _, set := range rapid.SliceOf(rapid.MapOf(name, rapid.StringMatching("[a-c]?"))).Draw(t, "sets") {
			requireSame(t, set, names.Compact(set))
		}
	})
}

// Elements select alike if neither a label nor a field tells them apart.
func TestSelectsAs(t *testing.T) {
	var names watchcache.FieldNames
	of := func(label, field string) *watchcache.Element {
		return &watchcache.Element{Labels: map[string]string{"a": label}, Fields: names.Compact(fields.Set{"f": field})}
	}
	require.True(t, of("1", "1").SelectsAs(of("1", "1")))
	require.False(t, of("1", "1").SelectsAs(of("2", "1")), "another label")
	require.False(t, of("1", "1").SelectsAs(of("1", "2")), "another field")
	none := &watchcache.Element{Labels: map[string]string{"a": "1"}}
	require.True(t, none.SelectsAs(&watchcache.Element{Labels: map[string]string{"a": "1"}}))
	require.False(t, none.SelectsAs(of("1", "1")))
	require.False(t, of("1", "1").SelectsAs(none))
}

// An element shares what is equal with the one that it replaces, and nothing else.
func TestChangedFieldsAreKept(t *testing.T) {
	var names watchcache.FieldNames
	s := watchcache.New(roomy)
	s.Replace(nil, 1)
	for i, value := range []string{"1", "1", "2", "1"} {
		change := modified("a", uint64(i)+2, "x")
		if i == 0 {
			change = added("a", 2, "x")
		}
		change.Element.Fields = names.Compact(fields.Set{"f": value})
		apply(t, s, change)
		require.Equal(t, value, s.Latest().Get("a").Fields.Get("f"))
	}
}
