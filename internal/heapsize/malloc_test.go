// SPDX-License-Identifier: Apache-2.0

package heapsize

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The table of size classes is the allocator's: append gives a slice all the
// room that was allocated for it.
func TestAllocatedIsWhatTheAllocatorTakes(t *testing.T) {
	for n := 1; n < 40_000; n += 1 + n/1000 {
		room := cap(append([]byte(nil), make([]byte, n)...))
		require.EqualValues(t, room, allocated(uintptr(n), false), "%d bytes", n)
		words := cap(append([]*byte(nil), make([]*byte, n)...))
		size := uintptr(n) * unsafe.Sizeof((*byte)(nil))
		want := uintptr(words) * unsafe.Sizeof((*byte)(nil))
		if size > maxBitmap && size <= maxSmall-wordSize {
			want += wordSize // the header
		}
		require.Equal(t, want, allocated(size, true), "%d pointers", n)
	}
}
