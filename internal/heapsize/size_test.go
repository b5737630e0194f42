// SPDX-License-Identifier: Apache-2.0

package heapsize_test

import (
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/internal/heapsize"
)

// odd is an object of a type that nobody should store.
type odd struct {
	Call      func()
	Channel   chan string
	Raw       unsafe.Pointer
	Address   uintptr
	Any       any
	Method    interface{ String() string }
	Others    map[float64]*string
	ByStruct  map[struct{ A, B string }]odd
	ByAny     map[any]any
	Large     map[[200]byte][200]string
	Many      [100]string
	Nothing   [0]string
	Empty     []struct{}
	Children  []odd
	When      time.Time
	Type      reflect.Type
	guarded   guarded
	ByPointer map[*odd]struct{}
}

// props is a type that leads to itself in every way, as that of OpenAPI schemas.
type props struct {
	Description string
	Properties  map[string]props
	AllOf       []props
	Items       *props
}

// guarded has a field that is written under a lock.
type guarded struct {
	lock    sync.Mutex
	content map[string]string
}

func (o *odd) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (o *odd) DeepCopyObject() runtime.Object   { return o }

// A value that can't be followed, or that never ends, stops no walk.
func TestOddObjects(t *testing.T) {
	struct1 := int64(unsafe.Sizeof(odd{}))
	cycle, byAny, byPointer := &props{}, &odd{}, &odd{}
	cycle.Items, cycle.AllOf, cycle.Properties = cycle, []props{{Items: cycle}}, map[string]props{"a": {Items: cycle}}
	byAny.Any, byPointer.ByPointer = byAny, map[*odd]struct{}{byPointer: {}}
	list := []any{nil}
	list[0] = list
	object := map[string]any{}
	object["self"] = object
	var none *odd
	full := &odd{
		Call: func() {}, Channel: make(chan string, 10), Raw: unsafe.Pointer(byAny), Address: math.MaxUint,
		Others: map[float64]*string{math.NaN(): new("x"), 1: nil}, ByAny: map[any]any{1: "x", "a": none, [1]*odd{}: nil},
		Large: map[[200]byte][200]string{{}: {"x"}}, Empty: make([]struct{}, math.MaxInt), When: time.Now(),
		Type: reflect.TypeFor[odd](), ByStruct: map[struct{ A, B string }]odd{{"a", "b"}: {}}, Method: time.Second,
	}
	full.guarded.content = map[string]string{"a": strings.Repeat("x", 1<<20)}
	for name, tc := range map[string]struct {
		object      any
		least, most int64
	}{
		"nil":                       {nil, 0, 0},
		"a nil pointer":             {none, 0, 0},
		"an object with nothing":    {&odd{}, struct1, 2 * struct1},
		"an object with everything": {full, struct1, 100_000},
		"a cycle in every way":      {cycle, 48, math.MaxInt64},
		"a cycle by interface":      {byAny, struct1, math.MaxInt64},
		"a cycle by a map's key":    {byPointer, struct1, math.MaxInt64},
		"a list within itself":      {list, 16, math.MaxInt64},
		"an object within itself":   {object, 48, math.MaxInt64},
		"a value":                   {odd{}, struct1, 2 * struct1},
		"a direct value":            {[1]*string{new("0123456789")}, 32, 40},
		"a string":                  {"0123456789", 16 + 16, 16 + 16},
		"a nil map":                 {map[string]any(nil), 0, 0},
	} {
		got := heapsize.Of(tc.object)
		assert.GreaterOrEqual(t, got, tc.least, name)
		assert.LessOrEqual(t, got, tc.most, name)
	}
}

// Every way in which a type can lead to memory is followed: 100 KB that hang
// there count.
func TestEveryWayIsFollowed(t *testing.T) {
	const size = 100_000
	text := strings.Repeat("x", size)
	quantity := resource.MustParse("1")
	type named string
	for name, object := range map[string]any{
		"a string":                     &struct{ S string }{text},
		"a named string":               &struct{ S named }{named(text)},
		"an unexported field":          &struct{ s string }{text},
		"a pointer":                    &struct{ P **string }{new(&text)},
		"a slice":                      &struct{ S []string }{[]string{"", text}},
		"what a slice has room for":    &struct{ S []byte }{make([]byte, 0, size)},
		"an array":                     &struct{ A [3]string }{[3]string{2: text}},
		"a long array":                 &struct{ A [300]string }{[300]string{299: text}},
		"an array of arrays":           &struct{ A [30][30]struct{ S []string } }{[30][30]struct{ S []string }{29: {29: {[]string{text}}}}},
		"a map's value":                map[string]string{"a": text},
		"a map's key":                  map[string]string{text: "a"},
		"a map of named strings":       map[named]named{"a": named(text)},
		"a map's key without value":    map[string]bool{text: true},
		"a map of bytes":               map[string][]byte{"a": []byte(text)},
		"a map of strings' slices":     map[named][]string{"a": {text}},
		"the key of a map of bytes":    map[string][]byte{text: nil},
		"the key of quantities":        corev1.ResourceList{corev1.ResourceName(text): quantity},
		"seven words":                  map[string][7]*string{"a": {6: &text}},
		"a map of maps":                map[int]map[string]string{7: {"a": text}},
		"a map of pointers":            map[string]*string{"a": &text},
		"a map of large values":        map[string][200]byte{text: {}},
		"what a large value refers to": map[string][200]string{"a": {199: text}},
		"large values":                 map[int][size]byte{1: {}},
		"large keys":                   map[[size]byte]int{{}: 1},
		"an interface":                 &struct{ I any }{&text},
		"an interface with methods":    &struct{ I interface{ GetName() string } }{&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: text}}},
		"a value in an interface":      &struct{ I any }{struct{ A, B string }{B: text}},
		"an embedded object":           &runtime.RawExtension{Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: text}}},
		"an embedded encoding":         &runtime.RawExtension{Raw: []byte(text)},
		"JSON in JSON":                 map[string]any{"a": []any{map[string]any{"b": []any{text}}}},
		"JSON of another type":         map[string]any{"a": []string{text}},
		"a schema in a schema":         &props{Properties: map[string]props{"a": {AllOf: []props{{Items: &props{Description: text}}}}}},
	} {
		got := heapsize.Of(object)
		assert.GreaterOrEqual(t, got, int64(size), name)
		assert.LessOrEqual(t, got, int64(size+30_000), name)
	}
}

// JSON that is nested as deeply as a decoder allows is counted to its end.
func TestDeepObjects(t *testing.T) {
	const size = 1 << 20
	for name, wrap := range map[string]func(any) any{
		"lists":    func(v any) any { return []any{v} },
		"objects":  func(v any) any { return map[string]any{"a": v} },
		"pointers": func(v any) any { return &v },
	} {
		var v any = strings.Repeat("x", size)
		for range 10_000 {
			v = wrap(v)
		}
		got := heapsize.Of(v)
		assert.GreaterOrEqual(t, got, int64(size), name)
	}
}

// The plans of types are made by whoever meets them first.
func TestConcurrently(t *testing.T) {
	objects := []any{aPod(2), &corev1.NodeList{Items: make([]corev1.Node, 3)}, &props{Items: &props{}}, &corev1.Secret{Data: map[string][]byte{"a": {1}}}}
	got := make([][]int64, 8)
	var group sync.WaitGroup
	for i := range got {
		group.Go(func() {
			for _, object := range objects {
				got[i] = append(got[i], heapsize.Of(object))
			}
		})
	}
	group.Wait()
	for _, sizes := range got {
		require.Equal(t, got[0], sizes)
	}
}
