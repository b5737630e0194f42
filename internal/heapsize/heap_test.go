// SPDX-License-Identifier: Apache-2.0

//go:build !race && !invariants

// These tests measure the heap of the plain build: the race detector allocates for
// itself.

package heapsize_test

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	runtimeapi "k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/internal/heapsize"
)

// tolerance is how far the estimate may be from what the heap shows.
const tolerance = 0.25

// live returns the bytes of all objects on the heap that are in use.
func live() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The estimate of decoded objects is what the heap shows of many of them.
func TestHeapOfDecodedObjects(t *testing.T) {
	cases := map[string]decoder{}
	for _, containers := range []int{1, 3, 5, 20} {
		decode, size := protobufPods(t, containers)
		cases[fmt.Sprintf("a Pod of %d bytes", size)] = decode
	}
	for _, size := range []int{1_000, 10_000, 100_000} {
		decode, size := custom(t, size)
		cases[fmt.Sprintf("an unstructured object of %d bytes", size)] = decode
	}
	cases["an internal device"], cases["a versioned device"] = devices(t)
	for name, decode := range cases {
		t.Run(name, func(t *testing.T) { compare(t, decode) })
	}
}

// The same of objects with one large part, made as a decoder makes it.
func TestHeapOfLargeParts(t *testing.T) {
	large := func(change func(*corev1.Pod)) decoder {
		return func() runtimeapi.Object {
			pod := aPod(1)
			change(pod)
			return pod
		}
	}
	const size = 200_000
	for name, decode := range map[string]decoder{
		"a string": large(func(pod *corev1.Pod) { pod.Status.Message = strings.Repeat("x", size) }),
		"a map of one long string": large(func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{"content": strings.Repeat("x", size)}
		}),
		"a map of many strings": large(func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{}
			for i := range size / 100 {
				pod.Annotations[fmt.Sprintf("example.com/annotation-%05d", i)] = fmt.Sprintf("value %d %s", i, strings.Repeat("v", 50))
			}
		}),
		"a slice of structs": large(func(pod *corev1.Pod) {
			for i := range size / 100 {
				pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_NUMBER_%d", i), Value: strings.Repeat("v", 50)})
			}
		}),
		"a slice of bytes": func() runtimeapi.Object {
			return &corev1.Secret{Data: map[string][]byte{"content": make([]byte, size)}}
		},
		"a list of numbers": func() runtimeapi.Object {
			var numbers []any
			for i := range size / 10 {
				numbers = append(numbers, int64(i))
			}
			return &unstructured.Unstructured{Object: map[string]any{"numbers": numbers}}
		},
	} {
		t.Run(name, func(t *testing.T) { compare(t, decode) })
	}
}

// compare holds the estimate of many objects against the heap.
func compare(t *testing.T, decode decoder) {
	t.Helper()
	n := int(min(2_000, max(20, 8<<20/heapsize.Of(decode()))))
	objects := make([]runtimeapi.Object, n)
	before := live()
	for i := range objects {
		objects[i] = decode()
	}
	took := live() - before
	var estimate int64
	for _, object := range objects {
		estimate += heapsize.Of(object)
	}
	runtime.KeepAlive(objects)
	ratio := float64(estimate) / float64(took)
	t.Logf("%d objects: %d bytes each, estimated %d: %.3f", n, took/int64(n), estimate/int64(n), ratio)
	assert.LessOrEqual(t, math.Abs(ratio-1), tolerance, "estimated %d bytes, the heap shows %d: %.2f of it", estimate, took, ratio)
}

// Of allocates nothing for the objects that there are.
func TestAllocationsOfAnEstimate(t *testing.T) {
	pod, _ := protobufPods(t, 3)
	object, _ := custom(t, 10_000)
	internal, versioned := devices(t)
	secret := func() runtimeapi.Object {
		return &corev1.Secret{
			Data:       map[string][]byte{"a": []byte("content"), "b": nil},
			StringData: map[string]string{"c": "d"},
		}
	}
	for name, decode := range map[string]decoder{
		"a Pod": pod, "an unstructured object": object, "an internal device": internal, "a versioned device": versioned, "a Secret": secret,
	} {
		object := decode()
		heapsize.Of(object)
		assert.Zero(t, testing.AllocsPerRun(100, func() { heapsize.Of(object) }), "%s: the allocations of an estimate", name)
	}
}
