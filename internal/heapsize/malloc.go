// SPDX-License-Identifier: Apache-2.0

package heapsize

// classes are the sizes of small objects that Go's allocator has.
var classes = [...]uint16{
	8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 352, 384, 416, 448,
	480, 512, 576, 640, 704, 768, 896, 1024, 1152, 1280, 1408, 1536, 1792, 2048, 2304, 2688, 3072, 3200, 3456,
	4096, 4864, 5376, 6144, 6528, 6784, 6912, 8192, 9472, 9728, 10240, 10880, 12288, 13568, 14336, 16384, 18432,
	19072, 20480, 21760, 24576, 27264, 28672, 32768,
}

const (
	maxSmall = 32768
	page     = 8192
	// An object with pointers that is larger than maxBitmap, but small, has a
	// header of one word.
	maxBitmap = wordSize * wordSize * 8
	// steps is the range that has a class for each multiple of 8; above it
	// there is one for each multiple of 128.
	steps = 1024
)

// class8 is the class of each size up to steps, by eighths, class128 of the
// sizes above it, by their distance.
var (
	class8   = classTable[[steps/8 + 1]uint16](0, 8)
	class128 = classTable[[(maxSmall-steps)/128 + 1]uint16](steps, 128)
)

func classTable[T [129]uint16 | [249]uint16](from, step int) (table T) {
	class := 0
	for i := range len(table) {
		for int(classes[class]) < from+i*step {
			class++
		}
		table[i] = classes[class]
	}
	if from == 0 {
		table[0] = 0 // nothing is allocated for nothing
	}
	return table
}

// allocated returns what the allocator takes for n bytes.
func allocated(n uintptr, pointers bool) uintptr {
	if n <= maxBitmap {
		return uintptr(class8[(n+7)/8])
	}
	return allocatedLarge(n, pointers)
}

func allocatedLarge(n uintptr, pointers bool) uintptr {
	if pointers && n <= maxSmall-wordSize {
		n += wordSize
	}
	switch {
	case n <= steps:
		return uintptr(class8[(n+7)/8])
	case n <= maxSmall:
		return uintptr(class128[(n-steps+127)/128])
	}
	return roundUp(n, page)
}
