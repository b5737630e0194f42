// SPDX-License-Identifier: Apache-2.0

package heapsize_test

import (
	"fmt"
	"testing"

	"github.com/kube-watchcache/watchcache/internal/heapsize"
)

func BenchmarkOf(b *testing.B) {
	for _, containers := range []int{1, 3, 14} {
		decode, size := protobufPods(b, containers)
		b.Run(fmt.Sprintf("Pod/%d", size), func(b *testing.B) { measure(b, decode) })
	}
	for _, size := range []int{1_000, 10_000, 100_000} {
		decode, size := custom(b, size)
		b.Run(fmt.Sprintf("Unstructured/%d", size), func(b *testing.B) { measure(b, decode) })
	}
	internal, versioned := devices(b)
	b.Run("Device/internal", func(b *testing.B) { measure(b, internal) })
	b.Run("Device/versioned", func(b *testing.B) { measure(b, versioned) })
}

// measure sizes many objects in turn, as a list brings them.
func measure(b *testing.B, decode decoder) {
	objects := make([]any, 1000)
	for i := range objects {
		objects[i] = decode()
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		heapsize.Of(objects[i])
		i = (i + 1) % len(objects)
	}
}
