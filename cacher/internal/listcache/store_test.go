// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher/internal/bytebudget"
)

// cpuTime returns the CPU time of the process.
func cpuTime(t *testing.T) time.Duration {
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// A list of n chunks for which there is no room beside n that other lists use takes time in
// proportion to n (regression 178).
func TestChunksWithoutRoom(t *testing.T) {
	chunks := func(n int, prefix string) (all []*part) {
		for i := range n {
			c := &chunk{at: place{key: prefix + strconv.Itoa(i)}, ids: []identity{{key: uint64(i)}}}
			c.content.Store(&content{plain: make([]byte, 100)})
			all = append(all, &part{chunk: c, keep: true})
		}
		return all
	}
	took := func(n int) time.Duration {
		kept, more := chunks(n, "a"), chunks(n, "b")
		has := kept[0].chunk.content.Load()
		share, other := bytebudget.New(2 * int64(n) * kept[0].chunk.size(has))
		other.Add(int64(n) * kept[0].chunk.size(has))
		s := NewStore(share)
		s.lists.Add(1)
		require.True(t, s.keep(kept), "there is no room for %d chunks", n)
		begun := cpuTime(t)
		require.False(t, s.keep(more), "there is room for all")
		return cpuTime(t) - begun
	}
	const n, doublings = 1000, 4
	least := func(n int) time.Duration { return min(took(n), took(n), took(n)) }
	small, large := least(n), least(n<<doublings)
	most := 1.0
	for range doublings {
		most *= 2.6
	}
	assert.Less(t, float64(large), most*float64(small), "%v for %d chunks, %v for %d", small, n, large, n<<doublings)
}
