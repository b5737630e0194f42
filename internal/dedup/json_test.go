// SPDX-License-Identifier: Apache-2.0

package dedup_test

import (
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/internal/dedup"
)

// share shares JSON objects, each with the one before it, and returns them.
func share(s *dedup.Sharer, objects ...map[string]any) []map[string]any {
	var like any
	for i := range objects {
		s.Share(&objects[i], like)
		like = &objects[i]
	}
	return objects
}

func pointer(value any) unsafe.Pointer { return reflect.ValueOf(value).UnsafePointer() }

func env(name string, value any) map[string]any {
	return map[string]any{"name": name, "value": value}
}

// Small objects and arrays that are equal are one, also where they stand at
// different places, and in different objects; unless another one has taken their place
// in the table, which is by chance.
func TestEqualSmallPartsAreOne(t *testing.T) {
	shared, tries := 0, 0
	one := func(a, b any) {
		tries++
		if pointer(a) == pointer(b) {
			shared++
		}
	}
	for range 100 {
		var s dedup.Sharer
		objects := share(&s,
			map[string]any{"a": []any{env("RUN", "1")}, "b": []any{env("RUN", "1")}, "c": env("RUN", "1"), "none": map[string]any{}, "no": map[string]any{}},
			map[string]any{"d": []any{env("RUN", "1")}, "a": map[string]any{"in": []any{env("RUN", "1")}}})
		first, second := objects[0], objects[1]
		a := first["a"].([]any)
		one(a, first["b"])
		one(a[0], first["c"])
		one(first["none"], first["no"])
		one(a, second["d"])
		one(a, second["a"].(map[string]any)["in"])
	}
	require.Greater(t, shared, tries*4/5)
}

// Parts that differ in type, bits or length are not one, nor are those whose kept form
// would keep much memory in use.
func TestOtherPartsAreNotOne(t *testing.T) {
	long := strings.Repeat("x", 300)
	large := func() []any {
		var out []any
		for i := range 20 {
			out = append(out, int64(i))
		}
		return out
	}
	values := []any{
		nil, true, false, int64(0), int64(1), 0.0, math.Copysign(0, -1), 1.0, "", "0", "1",
		[]any{}, []any{nil}, map[string]any{}, []any{map[string]any{}}, []any{[]any{}},
		[]string{"of no decoder"}, []any(nil), map[string]any(nil), long, large(), []any{large()},
	}
	var s dedup.Sharer
	object := map[string]any{}
	for i, value := range values {
		object[fmt.Sprintf("object-%d", i)] = map[string]any{"value": value}
		object[fmt.Sprintf("list-%d", i)] = []any{value}
	}
	share(&s, object)
	for i, value := range values {
		require.Equal(t, map[string]any{"value": value}, object[fmt.Sprintf("object-%d", i)])
		require.Equal(t, []any{value}, object[fmt.Sprintf("list-%d", i)])
	}
	require.True(t, math.Signbit(object["object-6"].(map[string]any)["value"].(float64)))
	again := share(&s, map[string]any{"long": env("x", long), "large": large()}, map[string]any{"long too": env("x", long), "large too": large()})
	require.NotEqual(t, pointer(again[0]["long"]), pointer(again[1]["long too"]))
	require.NotEqual(t, pointer(again[0]["large"]), pointer(again[1]["large too"]))
}

// An array of an object has no room: a reader that appends does not write to another
// object.
func TestArraysHaveNoRoom(t *testing.T) {
	var s dedup.Sharer
	objects := share(&s,
		map[string]any{"list": append(make([]any, 0, 8), "a"), "changes": append(make([]any, 0, 8), "a")},
		map[string]any{"list": append(make([]any, 0, 8), "a"), "changes": append(make([]any, 0, 8), "b")})
	for _, object := range objects {
		for name, list := range object {
			require.Equal(t, 1, cap(list.([]any)), name)
		}
	}
}

// Maps of eight entries stay as small as Go makes them: a map that is full grows
// when one of its entries is assigned to.
func TestFullMapsDoNotGrow(t *testing.T) {
	const n, perMap = 2000, 336
	for name, add := range map[string]func(into *holder, i, entry int){
		"JSON":  func(into *holder, i, entry int) { into.JSON[fmt.Sprint("key-", entry)] = fmt.Sprint(i) },
		"texts": func(into *holder, i, entry int) { into.Texts[fmt.Sprint("key-", entry)] = fmt.Sprint(i) },
	} {
		t.Run(name, func(t *testing.T) {
			var s dedup.Sharer
			all := make([]*holder, n)
			before := inUse()
			for i := range all {
				all[i] = &holder{JSON: map[string]any{}, Texts: map[string]string{}}
				for entry := range 8 {
					add(all[i], i, entry)
				}
				s.Share(all[i], all[max(0, i-1)])
			}
			each := (inUse() - before) / n
			runtime.KeepAlive(all)
			require.Less(t, each, int64(perMap+200), "a map, an empty one, and a string of its own, with what the tables keep")
		})
	}
}

type holder struct {
	JSON  map[string]any
	Texts map[string]string
}

func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// JSON that is shared stays what it was, and so does what was shared before.
func TestSharedJSONStaysWhatItIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s dedup.Sharer
		var want []map[string]any
		var shared []*map[string]any
		for i := range rapid.IntRange(1, 12).Draw(t, "objects") {
			drawn := object(t, 4)
			want = append(want, drawn)
			given := apiruntime.DeepCopyJSON(drawn)
			shared = append(shared, &given)
			var like any
			if n := rapid.IntRange(-1, i-1).Draw(t, "like"); n >= 0 {
				like = shared[n]
			}
			s.Share(&given, like)
			for n := range want {
				require.Equal(t, want[n], *shared[n], "object %d", n)
			}
		}
	})
}

// object draws a JSON object of few different parts, so that many are equal.
func object(t *rapid.T, depth int) map[string]any {
	out := map[string]any{}
	for i := range rapid.SampledFrom([]int{0, 1, 2, 8, 9}).Draw(t, "entries") {
		out[fmt.Sprintf("k%d", i)] = value(t, depth-1)
	}
	return out
}

func value(t *rapid.T, depth int) any {
	most := 7
	if depth <= 0 {
		most = 5
	}
	switch rapid.IntRange(0, most).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2:
		return rapid.SampledFrom([]int64{0, 1, 1 << 40}).Draw(t, "int")
	case 3:
		return rapid.SampledFrom([]float64{0, 1, 1.5}).Draw(t, "float")
	case 4, 5:
		return rapid.SampledFrom([]string{"", "0", "1", strings.Repeat("long", 80)}).Draw(t, "text")
	case 6:
		list := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "elements") {
			list = append(list, value(t, depth-1))
		}
		return list
	}
	return object(t, depth)
}
