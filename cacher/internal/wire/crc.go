// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"hash/crc32"
	"math/bits"
)

// The checksum of a list is made of those of its chunks. To append n bytes to
// some that have a checksum is to multiply this checksum by x^8n and to add the
// checksum of the n bytes, modulo the polynomial of crc32.IEEE. Polynomials are
// written as hash/crc32 writes them: bit 31 is the coefficient of x^0.

// one is the polynomial 1.
const one = 1 << 31

// byteShifts has x^(8·2^k) at k.
var byteShifts = func() (powers [bits.UintSize]uint32) {
	powers[0] = one >> 8
	for k := 1; k < len(powers); k++ {
		powers[k] = product(powers[k-1], powers[k-1])
	}
	return powers
}()

// product multiplies two polynomials modulo that of crc32.IEEE.
func product(a, b uint32) (sum uint32) {
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			sum ^= b
		}
		overflow := b & 1
		b >>= 1
		if overflow != 0 {
			b ^= crc32.IEEE
		}
	}
	return sum
}

// byteShift returns x^8n, for n that is not negative.
func byteShift(n int) uint32 {
	shift := uint32(one)
	for k := 0; n>>k != 0; k++ {
		if n>>k&1 != 0 {
			shift = product(byteShifts[k], shift)
		}
	}
	return shift
}

// appendedChecksum returns the checksum of some bytes and others after them,
// from the checksum of each, and byteShift of the length of the others.
func appendedChecksum(checksum, others, shift uint32) uint32 {
	return product(checksum, shift) ^ others
}
