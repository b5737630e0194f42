// SPDX-License-Identifier: Apache-2.0

package heapsize

import (
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
)

// modelOf is Of by reflection alone, one step at a time.
func modelOf(v reflect.Value) uintptr {
	if !v.IsValid() {
		return 0
	}
	t := v.Type()
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Map {
		return below(v)
	}
	return planOf(t).alloc + below(v)
}

// below is what a value refers to.
func below(v reflect.Value) (n uintptr) {
	t := v.Type()
	if opaque(t) {
		return 0
	}
	switch t.Kind() {
	case reflect.String:
		return allocated(uintptr(v.Len()), false)
	case reflect.Pointer:
		if v.IsNil() {
			return 0
		}
		return planOf(t.Elem()).alloc + below(v.Elem())
	case reflect.Slice:
		n = allocated(uintptr(v.Cap())*t.Elem().Size(), planOf(t.Elem()).leads())
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			n += below(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += below(v.Field(i))
		}
	case reflect.Map:
		if v.IsNil() {
			return 0
		}
		n = mapMemory(v.Len(), planOf(t.Key()), planOf(t.Elem()))
		for entries := v.MapRange(); entries.Next(); {
			n += below(entries.Key()) + below(entries.Value())
		}
	case reflect.Interface:
		return held(v.Elem())
	}
	return n
}

// held is what an interface takes that lies in an object: empty strings and booleans
// are not allocated.
func held(v reflect.Value) uintptr {
	switch {
	case !v.IsValid(), v.Type() == reflect.TypeFor[bool](),
		v.Type() == reflect.TypeFor[string]() && v.Len() == 0:
		return 0
	}
	return modelOf(v)
}

// leaves are types that the random ones end in.
var leaves = []reflect.Type{
	reflect.TypeFor[bool](), reflect.TypeFor[int8](), reflect.TypeFor[int64](), reflect.TypeFor[float64](), reflect.TypeFor[string](),
	reflect.TypeFor[corev1.ResourceName](), reflect.TypeFor[any](), reflect.TypeFor[any](), reflect.TypeFor[error](), reflect.TypeFor[fmt.Stringer](),
	reflect.TypeFor[time.Time](), reflect.TypeFor[resource.Quantity](), reflect.TypeFor[corev1.Container](), reflect.TypeFor[runtime.RawExtension](),
	reflect.TypeFor[func()](), reflect.TypeFor[chan int](), reflect.TypeFor[sync.Mutex](), reflect.TypeFor[struct{}](),
	reflect.TypeFor[map[string]string](), reflect.TypeFor[map[string]any](), reflect.TypeFor[[]any](), reflect.TypeFor[corev1.ResourceList](),
}

func drawType(t *rapid.T, depth int) reflect.Type {
	kind := 0
	if depth > 0 {
		kind = rapid.IntRange(0, 5).Draw(t, "kind")
	}
	switch kind {
	case 1:
		return reflect.PointerTo(drawType(t, depth-1))
	case 2:
		return reflect.SliceOf(drawType(t, depth-1))
	case 3:
		return reflect.ArrayOf(rapid.IntRange(0, 8).Draw(t, "length"), drawType(t, depth-1))
	case 4:
		key := drawType(t, depth-1)
		if !key.Comparable() {
			key = reflect.TypeFor[string]()
		}
		return reflect.MapOf(key, drawType(t, depth-1))
	case 5:
		fields := make([]reflect.StructField, rapid.IntRange(0, 5).Draw(t, "fields"))
		for i := range fields {
			fields[i] = reflect.StructField{Name: fmt.Sprint("F", i), Type: drawType(t, depth-1)}
		}
		return reflect.StructOf(fields)
	}
	return leaves[rapid.IntRange(0, len(leaves)-1).Draw(t, "leaf")]
}

// fill draws a value. Fields that fill can't set stay zero.
func fill(t *rapid.T, v reflect.Value, depth int) {
	if !v.CanSet() || depth == 0 || rapid.IntRange(0, 9).Draw(t, "zero") == 0 {
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int8, reflect.Int64:
		v.SetInt(rapid.Int64Range(-128, 127).Draw(t, "number"))
	case reflect.String:
		v.SetString(string(make([]byte, rapid.IntRange(0, 2000).Draw(t, "length"))))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), depth-1)
	case reflect.Slice:
		n := rapid.IntRange(0, 3).Draw(t, "length")
		v.Set(reflect.MakeSlice(v.Type(), n, n+rapid.IntRange(0, 3).Draw(t, "room")))
		fallthrough
	case reflect.Array:
		for i := range min(3, v.Len()) {
			fill(t, v.Index(i), depth-1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), depth-1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range rapid.IntRange(0, 12).Draw(t, "entries") {
			key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(t, key, depth-1)
			fill(t, elem, depth-1)
			if hashable(key) {
				v.SetMapIndex(key, elem)
			}
		}
	case reflect.Interface:
		held := reflect.New(drawType(t, 1))
		fill(t, held.Elem(), depth-1)
		if held.Elem().Type().AssignableTo(v.Type()) {
			v.Set(held.Elem())
		}
	case reflect.Func:
		v.Set(reflect.ValueOf(func() {}))
	case reflect.Chan:
		v.Set(reflect.MakeChan(v.Type(), 1))
	}
}

// hashable reports whether a value can be a key. Comparable does not see an
// empty array in an interface.
func hashable(v reflect.Value) (ok bool) {
	defer func() { ok = recover() == nil }()
	_ = map[any]bool{v.Interface(): true}
	return true
}

// Values of any type are counted as the model counts them.
func TestAgainstModel(t *testing.T) { rapid.Check(t, againstModel) }

func FuzzAgainstModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(againstModel)) }

func againstModel(t *rapid.T) {
	typ := drawType(t, 4)
	v := reflect.New(typ)
	fill(t, v.Elem(), 8)
	pointer, value := v.Interface(), v.Elem().Interface()
	got, want := Of(pointer), int64(modelOf(v))
	require.Equal(t, want, got, "a pointer to a %v: %+v", typ, value)
	require.GreaterOrEqual(t, got, int64(typ.Size()), "a pointer to a %v: %+v", typ, value)
	if value == nil {
		return // of an interface type
	}
	got, want = Of(value), int64(held(reflect.ValueOf(value)))
	require.Equal(t, want, got, "a %v: %+v", typ, value)
}
