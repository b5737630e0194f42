// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// suspicionPause is the least time between two suspicions that are followed
// up. The pause doubles with each, up to suspicionPauseMax, until a comparison
// with storage passes or, where none are made, for good: requests of a client
// must not make the cache compare or list all the time.
const (
	suspicionPause    = 10 * time.Second
	suspicionPauseMax = time.Hour
)

// trust is what the cache knows of its own errors. A state that is doubtful
// was found to differ from storage, and is to be listed again: until then
// consistent reads and those of earlier versions are storage's to answer.
type trust struct {
	clock    clock.PassiveClock
	doubtful atomic.Bool
	// from is the lowest resourceVersion that can be shown by undoing events:
	// what came before may lack some.
	from atomic.Uint64
	// lists is how often the state was listed.
	lists atomic.Uint64
	// check tells the consistency checker not to wait for its time.
	check chan struct{}

	mu struct {
		sync.Mutex
		// differs is the difference that the last check has found, after how
		// many lists, and failures how many have failed in a row. named: the
		// difference has survived a list.
		differs  watchcache.Digest
		after    uint64
		failures int
		named    bool
		// lastList is when a check that failed has last had the state listed,
		// dueList when the next list is due; zero: none is.
		lastList, dueList time.Time
		// suspected is when a suspicion was last followed up, pause the time
		// until the next one may be.
		suspected time.Time
		pause     time.Duration
	}
}

func newTrust(c clock.PassiveClock) *trust {
	return &trust{clock: c, check: make(chan struct{}, 1)}
}

// listed notes that the state was listed, at rv.
func (t *trust) listed(rv uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lists.Add(1)
	if t.doubtful.Load() || (rv < t.from.Load() && !t.mu.named) {
		t.from.Store(rv)
	}
	t.doubtful.Store(false)
	t.mu.dueList = time.Time{}
}

// passed notes that the state, of the given list, was found to agree with
// storage at rv.
func (t *trust) passed(list, rv uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lists.Load() != list {
		return
	}
	if t.from.Load() == math.MaxUint64 {
		t.from.Store(rv)
	}
	t.doubtful.Store(false)
	t.mu.failures, t.mu.named = 0, false
	t.mu.dueList = time.Time{}
}

// failed notes that the state, of the given list, was found to differ from
// storage. failed reports whether that makes the state doubtful, so that it is
// to be listed again: at once for the first time, later each time after a
// longer pause of up to eight times the interval between two checks. A
// difference that was the same before a list is not one of missed events, and
// no other list will mend it: storage has objects under other keys than the
// cache. The cache then shows what storage lists, but earlier versions can't be
// judged.
func (t *trust) failed(list uint64, differs watchcache.Digest, interval time.Duration) (doubtful bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lists.Load() != list {
		return true
	}
	t.mu.named = t.mu.failures > 0 && t.mu.differs == differs && (t.mu.named || t.mu.after < list)
	t.mu.differs, t.mu.after = differs, list
	t.mu.failures++
	t.from.Store(math.MaxUint64)
	t.doubtful.Store(!t.mu.named)
	if !t.mu.named && t.mu.dueList.IsZero() {
		t.mu.dueList = t.clock.Now()
		if t.mu.failures > 1 {
			if later := t.mu.lastList.Add(interval << min(t.mu.failures-2, 3)); later.After(t.mu.dueList) {
				t.mu.dueList = later
			}
		}
	}
	return !t.mu.named
}

// unresolved notes that no comparison could be made. A state that is doubtful
// is then listed again.
func (t *trust) unresolved() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.doubtful.Load() && t.mu.dueList.IsZero() {
		t.mu.dueList = t.clock.Now()
	}
}

// untilList returns in what time the state is to be listed again, if it is.
func (t *trust) untilList() (left time.Duration, due bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.dueList.Sub(t.clock.Now()), !t.mu.dueList.IsZero()
}

// takeList reports whether the time has come to list the state again. The caller
// does so.
func (t *trust) takeList() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	if t.mu.dueList.IsZero() || t.mu.dueList.After(now) {
		return false
	}
	t.mu.lastList, t.mu.dueList = now, time.Time{}
	return true
}

// suspect reports whether a suspicion is to be followed up.
func (t *trust) suspect() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	if t.mu.named || t.doubtful.Load() || (!t.mu.suspected.IsZero() && now.Sub(t.mu.suspected) < t.mu.pause) {
		return false
	}
	t.from.Store(math.MaxUint64)
	t.mu.suspected = now
	t.mu.pause = min(max(2*t.mu.pause, suspicionPause), suspicionPauseMax)
	t.doubtful.Store(true)
	return true
}

// distrust takes the state for wrong until it was listed again. The caller orders
// the list.
func (t *trust) distrust() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.from.Store(math.MaxUint64)
	t.doubtful.Store(true)
}

// suspect takes a hint that the cache is wrong. The cache is compared with storage
// at once, and doubted until that is done. If checks are switched off, it relists.
func (e *engine) suspect(err error) {
	if !e.trust.suspect() {
		return
	}
	e.warn("contradicts", "The watch cache contradicts its storage: it is compared with it or listed again, and consistent reads go to storage until then", err, remedyDifference)
	if e.config.ConsistencyCheckInterval < 0 {
		e.relist(metrics.RelistInconsistent, err)
		return
	}
	select {
	case e.trust.check <- struct{}{}:
	default:
	}
}
