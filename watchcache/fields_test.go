// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
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

// Fields answer as fields.Set does.
func TestFieldsAreAsFieldsSet(t *testing.T) {
	var names watchcache.FieldNames
	for range 3 {
		for _, set := range fieldSets {
			requireSame(t, set, names.Compact(set))
		}
	}
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

func TestFieldsMatchSelectors(t *testing.T) {
	var names watchcache.FieldNames
	for _, selector := range []string{"", "a=1", "a!=1", "a=", "a!=", "b=2", "a=1,b=2", "a=1,b!=2", "nowhere=", "nowhere!=x", "status.phase=Running"} {
		parsed := fields.ParseSelectorOrDie(selector)
		for _, set := range fieldSets {
			f := names.Compact(set)
			require.Equal(t, parsed.Matches(set), parsed.Matches(&f), "%q against %q", selector, set)
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

// BenchmarkCompact is what the feed pays for each object.
func BenchmarkCompact(b *testing.B) {
	set := fields.Set{}
	for i := range 9 {
		set[fmt.Sprintf("spec.field%d", i)] = "value"
	}
	var names watchcache.FieldNames
	b.ReportAllocs()
	for b.Loop() {
		names.Compact(set)
	}
}
