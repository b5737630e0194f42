// SPDX-License-Identifier: Apache-2.0

package watchcache

// Digest stands for a set of keys, each with the resourceVersion of its last
// write. Two sets with equal digests are taken to be equal. The zero value is
// the digest of the empty set.
type Digest uint64

// Toggle adds the key at rv to the set, or removes it if the set has it. The
// order in which keys are added and removed does not matter.
func (d *Digest) Toggle(key string, rv uint64) {
	// FNV-1a, finished so that all bits of rv reach all bits of the sum: keys
	// differ little from each other, and versions even less.
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h ^= rv * 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	*d ^= Digest(h ^ h>>31)
}
