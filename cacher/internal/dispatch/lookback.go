// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync"
	"sync/atomic"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// farBehind is from how many events on a replayer reads those alone that may affect
// its watcher. Fewer are walked sooner than looked up.
const farBehind = 8 * replayBatch

// lookback is the window as replayers read it that are far behind.
type lookback struct {
	state *watchcache.State
	// bytes is an estimate of the memory that is taken beside the window's.
	bytes atomic.Int64
	mu    struct {
		sync.Mutex
		postings *match.Postings
	}
}

func newLookback(indexes *match.Indexes, state *watchcache.State) *lookback {
	l := &lookback{state: state}
	l.mu.postings = match.NewPostings(indexes, state)
	return l
}

// read copies into events the next ones from a position on that may affect a query
// with the equality, and returns their number, and the position after all that it
// has passed. If ok is false, the caller must walk the window.
func (l *lookback) read(of match.Equality, from watchcache.Position, events *[replayBatch]*watchcache.Event) (n int, to watchcache.Position, ok bool) {
	var found [replayBatch]watchcache.Position
	l.mu.Lock()
	n, to, ok = l.mu.postings.Find(of, from, found[:])
	l.bytes.Store(l.mu.postings.Bytes())
	l.mu.Unlock()
	if !ok || l.state.Pick(from, found[:n], events[:]) != nil {
		return 0, 0, false // who walks the window finds out why
	}
	return n, to, true
}

// trim drops unused postings, unless the lock is taken: it does not wait.
func (l *lookback) trim() {
	if l.mu.TryLock() {
		l.mu.postings.Trim()
		l.bytes.Store(l.mu.postings.Bytes())
		l.mu.Unlock()
	}
}
