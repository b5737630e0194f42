// SPDX-License-Identifier: Apache-2.0

package dedup_test

import (
	"reflect"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/internal/dedup"
	"github.com/kube-watchcache/watchcache/internal/realistic"
)

func kinds(t testing.TB) []realistic.Kind {
	t.Helper()
	small, err := realistic.Pods(4000)
	require.NoError(t, err)
	large, err := realistic.Pods(15_000)
	require.NoError(t, err)
	custom, err := realistic.CustomResources(10_000)
	require.NoError(t, err)
	return []realistic.Kind{small, large, custom}
}

func decode(t testing.TB, k realistic.Kind, i, updates int) runtime.Object {
	t.Helper()
	encoded, err := k.Encode(i, updates)
	require.NoError(t, err)
	object, err := k.Decode(encoded, uint64(100*i+updates+1))
	require.NoError(t, err)
	return object
}

// However objects are shared, each of them stays what storage has, and so do those
// that it is shared with.
func TestObjectsStayWhatTheyAre(t *testing.T) {
	for _, k := range kinds(t) {
		t.Run(k.Name, func(t *testing.T) {
			var s dedup.Sharer
			var shared []runtime.Object
			var want []runtime.Object
			add := func(i, updates int, like runtime.Object) {
				object := decode(t, k, i, updates)
				s.Share(object, like)
				shared, want = append(shared, object), append(want, decode(t, k, i, updates))
			}
			add(0, 0, nil)
			for i := 1; i < 30; i++ {
				add(i, 0, shared[i-1])
			}
			for i := range 30 {
				for n := 1; n < 4; n++ {
					add(i, n, shared[i])
				}
			}
			for i := range shared {
				require.Equal(t, want[i], shared[i], "object %d", i)
				again, err := runtime.Encode(k.Codec, shared[i])
				require.NoError(t, err)
				before, err := runtime.Encode(k.Codec, want[i])
				require.NoError(t, err)
				require.Equal(t, before, again, "object %d, encoded", i)
			}
		})
	}
}

// Parts that an update leaves as they were are the same memory afterwards.
func TestUpdatesShareWhatIsEqual(t *testing.T) {
	k := kinds(t)[0]
	var s dedup.Sharer
	before, after := decode(t, k, 0, 0).(*corev1.Pod), decode(t, k, 0, 1).(*corev1.Pod)
	s.Share(before, nil)
	s.Share(after, before)
	require.Same(t, &before.Spec.Containers[0], &after.Spec.Containers[0])
	require.Same(t, before.Spec.SecurityContext, after.Spec.SecurityContext)
	require.Same(t, unsafe.StringData(before.Name), unsafe.StringData(after.Name))
	require.Equal(t, reflect.ValueOf(before.Labels).Pointer(), reflect.ValueOf(after.Labels).Pointer())
	require.Equal(t, reflect.ValueOf(before.Annotations).Pointer(), reflect.ValueOf(after.Annotations).Pointer())
	require.NotSame(t, &before.Status.Conditions[0], &after.Status.Conditions[0])
	require.Same(t, unsafe.StringData(string(before.Status.Conditions[0].Type)), unsafe.StringData(string(after.Status.Conditions[0].Type)))
	last := len(before.ManagedFields) - 1
	require.NotSame(t, before.ManagedFields[last].Time, after.ManagedFields[last].Time)
	require.Same(t, before.ManagedFields[last].FieldsV1, after.ManagedFields[last].FieldsV1)
}

func TestUpdatesOfJSONShareWhatIsEqual(t *testing.T) {
	k := kinds(t)[2]
	var s dedup.Sharer
	before, after := decode(t, k, 0, 0).(*unstructured.Unstructured), decode(t, k, 0, 1).(*unstructured.Unstructured)
	s.Share(before, nil)
	s.Share(after, before)
	at := func(u *unstructured.Unstructured, name string) uintptr {
		return reflect.ValueOf(u.Object[name]).Pointer()
	}
	require.Equal(t, at(before, "spec"), at(after, "spec"))
	require.NotEqual(t, at(before, "status"), at(after, "status"))
	require.NotEqual(t, at(before, "metadata"), at(after, "metadata"))
}

// Equal strings are one, also where they stand at different places, in keys and in
// interfaces.
func TestKnownStringsAreUsed(t *testing.T) {
	var s dedup.Sharer
	fresh := func() string { return string([]byte("a string of some length")) }
	texts := &[]string{fresh(), fresh()}
	s.Share(texts, nil)
	require.Same(t, unsafe.StringData((*texts)[0]), unsafe.StringData((*texts)[1]))
	object := &map[string]any{fresh(): fresh()}
	s.Share(object, nil)
	for key, value := range *object {
		require.Same(t, unsafe.StringData((*texts)[0]), unsafe.StringData(key))
		require.Same(t, unsafe.StringData((*texts)[0]), unsafe.StringData(value.(string)))
	}
	labels := &map[string]string{fresh(): fresh()}
	s.Share(labels, nil)
	for key, value := range *labels {
		require.Same(t, unsafe.StringData((*texts)[0]), unsafe.StringData(key))
		require.Same(t, unsafe.StringData((*texts)[0]), unsafe.StringData(value))
	}
}

// A reader that appends to a slice of an object must not write into another object.
func TestSharedSlicesHaveNoRoom(t *testing.T) {
	var s dedup.Sharer
	make1 := func() *corev1.Pod {
		pod := &corev1.Pod{}
		pod.Finalizers = append(make([]string, 0, 8), "a", "b")
		return pod
	}
	one, two := make1(), make1()
	s.Share(one, nil)
	s.Share(two, one)
	require.Same(t, &one.Finalizers[0], &two.Finalizers[0])
	longer := append(one.Finalizers, "c")
	_ = append(two.Finalizers, "d")
	require.Equal(t, []string{"a", "b", "c"}, longer)
}

// odd has parts of every kind that objects have seldom.
type odd struct {
	Lock      sync.Mutex
	Text      string
	Quantity  *resource.Quantity
	Any       any
	Method    interface{ String() string }
	Array     [3]string
	Floats    map[float64]string
	Ints      map[string]int
	Contents  map[string][]byte
	Call      func()
	Self      *odd
	Nothing   []struct{}
	Empty     []string
	Pointers  []*string
	Values    map[string]any
	Resources corev1.ResourceList
	inside    inside
}

type inside struct{ texts []string }

// Objects of any type survive, and those of different types are not mixed.
func TestOddObjects(t *testing.T) {
	full := func() *odd {
		quantity := resource.MustParse("1")
		o := &odd{
			Text: "text", Quantity: &quantity, Any: map[string]any{"a": []any{nil, "b", int64(1000), 1.5, true, []string{"x"}}},
			Array: [3]string{"a", "b", "c"}, Floats: map[float64]string{1: "a"}, Ints: map[string]int{"a": 1},
			Contents: map[string][]byte{"a": []byte("content"), "none": nil}, Nothing: make([]struct{}, 3), Empty: []string{},
			Pointers: []*string{new("a"), nil}, Values: map[string]any{"nil": nil, "map": map[string]any(nil), "list": []any{}},
			Resources: corev1.ResourceList{"cpu": quantity}, inside: inside{[]string{"a"}},
		}
		return o
	}
	var s dedup.Sharer
	one, two := full(), full()
	one.Self, two.Self = one, two // a cycle ends
	s.Share(one, nil)
	s.Share(two, one)
	two.Self = nil
	want := full()
	require.Equal(t, want, two)
	require.NotSame(t, one.Quantity, two.Quantity, "readers write to a quantity that they print")

	pod := &corev1.Pod{}
	s.Share(pod, one)
	s.Share(nil, pod)
	s.Share(pod, nil)
	s.Share((*corev1.Pod)(nil), pod)
	s.Share(corev1.Pod{}, corev1.Pod{})
	s.Share(pod, pod)
	require.Equal(t, &corev1.Pod{}, pod)
}

// Other objects are read while one shares with them.
func TestSharingWritesToOneObjectOnly(t *testing.T) {
	for _, k := range kinds(t) {
		first := decode(t, k, 0, 0)
		var s dedup.Sharer
		s.Share(first, nil)
		stop := make(chan struct{})
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						first.DeepCopyObject()
					}
				}
			})
		}
		for n := range 20 {
			s.Share(decode(t, k, n%3, n), first)
		}
		close(stop)
		readers.Wait()
		require.Equal(t, decode(t, k, 0, 0), first)
	}
}

// JSON that is nested more deeply than a walk goes stays as it is.
func TestDeepJSONEnds(t *testing.T) {
	deep := func() *unstructured.Unstructured {
		var v any = "end"
		for range 20_000 {
			v = []any{v}
		}
		return &unstructured.Unstructured{Object: map[string]any{"deep": v}}
	}
	var s dedup.Sharer
	one, two := deep(), deep()
	s.Share(one, nil)
	s.Share(two, one)
	depth := 0
	for v := two.Object["deep"]; depth < 30_000; depth++ {
		list, ok := v.([]any)
		if !ok {
			break
		}
		v = list[0]
	}
	require.Equal(t, 20_000, depth)
}
