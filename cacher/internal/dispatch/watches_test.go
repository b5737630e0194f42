// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
)

// turnLock counts how many members are visited between taking and giving up.
type turnLock struct {
	sync.Locker
	visited, most int
	given         func()
}

func (l *turnLock) Lock() { l.visited = 0 }

func (l *turnLock) Unlock() {
	l.most = max(l.most, l.visited)
	l.given()
}

// However many watchers there are, no event waits for more than a few of them to
// be described. Members that come and go between two turns are no harm: none of
// those that stay is missing, and none is visited twice.
func TestWatchersAreVisitedInTurns(t *testing.T) {
	const members = 100_000
	all := map[uint64]uint64{}
	for i := range uint64(members) {
		all[i] = i
	}
	added := uint64(members)
	lock := &turnLock{given: func() {
		if added < 2*members { // the set must not grow for ever
			if added > members {
				delete(all, added-1)
			}
			all[added], all[added+1] = added, added+1
			added += 2
		}
	}}
	visits := map[uint64]int{}
	inTurns(lock, all, func(m uint64) {
		lock.visited++
		visits[m]++
	})
	lock.most = max(lock.most, lock.visited)
	assert.LessOrEqual(t, lock.most, rowsAtOnce, "the number of watchers that the lock was held for")
	for i := range uint64(members) {
		require.Equal(t, 1, visits[i], "watcher %d was visited %d times", i, visits[i])
	}
	for m, n := range visits {
		require.LessOrEqual(t, n, 1, "watcher %d was visited %d times", m, n)
	}
}

// Endings keep the latest of each kind.
func TestEndingsAreKeptByKind(t *testing.T) {
	var e endings
	e.add(status.Ended{}, metrics.EndStopped)
	for i := range 3 * endingsKept {
		e.add(status.Ended{ID: uint64(i)}, metrics.EndExpired)
	}
	require.Len(t, e.usual, 1, "one that its client has ended")
	require.Len(t, e.unusual, endingsKept, "the endings that are kept")
	for _, e := range e.unusual {
		assert.GreaterOrEqual(t, e.ID, uint64(2*endingsKept), "ending %d is kept, although later ones are not", e.ID)
	}
}
