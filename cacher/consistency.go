// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/storage/capability"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// checkPageSize is the page size of a consistency check's lists, from a storage that
// can't return versions alone. One page is in memory at a time.
const checkPageSize = 500

// followConsistency compares the cache with storage from time to time, and when
// there is reason to, until the context is done. The times are spread, so that
// caches that were started together don't ask storage together.
func (e *engine) followConsistency(ctx context.Context) {
	if e.config.ConsistencyCheckInterval < 0 {
		return
	}
	pause := func() <-chan time.Time {
		return e.config.Clock.After(wait.Jitter(e.config.ConsistencyCheckInterval, 0.5))
	}
	next, list := pause(), (<-chan time.Time)(nil)
	for {
		select {
		case <-list:
			if list = nil; e.trust.takeList() {
				e.relist(metrics.RelistInconsistent)
			}
			continue
		case <-next:
		case <-e.trust.check:
		case <-ctx.Done():
			return
		}
		switch after, due := e.checkConsistency(ctx); {
		case due:
			list = e.config.Clock.After(after)
		case list == nil && e.trust.doubtful.Load(): // a state that can't be compared
			list = e.config.Clock.After(0)
		}
		next = pause()
	}
}

// checkConsistency compares the latest snapshot with storage at the same
// resourceVersion. If they differ, events were missed unnoticed (KEP-4988), and unless a
// list is no help, one is due after some time.
func (e *engine) checkConsistency(ctx context.Context) (after time.Duration, due bool) {
	if !e.readiness.ready() {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.ConsistencyCheckInterval)
	defer cancel()
	list := e.trust.lists.Load()
	compared := comparison{snapshot: e.state.Latest()}
	rv := compared.snapshot.RV()
	if err := e.storedVersions(ctx, rv, compared.visit); err != nil {
		if e.ctx.Err() == nil {
			e.notCompared(faultf(err, "comparing the cache of %s with its storage at resourceVersion %d", e.config.GroupResource, rv))
		}
		e.metrics.ConsistencyCheck(metrics.CheckError)
		return 0, false
	}
	differs := compared.stored ^ compared.snapshot.Digest()
	if differs == 0 {
		e.metrics.ConsistencyCheck(metrics.CheckPassed)
		e.trust.passed(list, rv)
		return 0, false
	}
	e.metrics.ConsistencyCheck(metrics.CheckFailed)
	err := faultf(keyFaultf(nil, "%s", compared.difference()), "the cache of %s differs at resourceVersion %d from its storage", e.config.GroupResource, rv)
	if after, due = e.trust.failed(list, differs); due {
		e.warn("differs", "The watch cache has missed events: it is listed again, and consistent reads go to storage until then", err, remedyDifference)
		return after, true
	}
	e.warn("elsewhere", "The watch cache and its storage know objects by different keys, also after a list: earlier resourceVersions are read from storage", err,
		"look for objects that are stored under another key than their names say")
	return 0, false
}

// notCompared logs a comparison that failed. The loss of storage is logged
// elsewhere, and a storage that has compacted the version meanwhile is in order.
func (e *engine) notCompared(err error) {
	const message = "The watch cache could not be compared with its storage. The comparison is tried again"
	switch {
	case apierrors.IsResourceExpired(err):
	case e.health.inDoubt():
		e.noteError(message, err)
	default:
		e.warn("compare", message, err, "look at the error, and at ConsistencyCheckInterval if a comparison takes longer than that")
	}
}

// storedVersions calls visit for each of the resource's keys in storage as of
// rv, with the resourceVersion of its last write.
func (e *engine) storedVersions(ctx context.Context, rv uint64, visit func(key string, rv uint64) error) error {
	if s, ok := e.config.Storage.(capability.VersionLister); ok {
		return s.Versions(ctx, e.config.ResourcePrefix, rv, visit)
	}
	return e.source.StateAt(ctx, e.config.ResourcePrefix, rv, checkPageSize, func(object runtime.Object) error {
		key, err := e.config.KeyFunc(object)
		if err != nil {
			return err
		}
		rv, err := e.config.Versioner.ObjectResourceVersion(object)
		if err != nil {
			return err
		}
		return visit(key, rv)
	})
}

// comparison compares a snapshot with the keys of storage, which visit takes in
// order.
type comparison struct {
	snapshot *watchcache.Snapshot
	stored   watchcache.Digest
	seen     int    // elements of the snapshot that storage has, too
	first    string // where the two part, "" as long as they don't
}

func (c *comparison) visit(key string, rv uint64) error {
	c.stored.Toggle(key, rv)
	if c.first != "" {
		return nil
	}
	all := c.snapshot.All()
	switch {
	case c.seen == len(all):
		c.first = fmt.Sprintf("which has %q at %d beyond the cache's last key", key, rv)
	case all[c.seen].Key != key || all[c.seen].RV != rv:
		c.first = fmt.Sprintf("which has %q at %d where the cache has %q at %d", key, rv, all[c.seen].Key, all[c.seen].RV)
	}
	c.seen++
	return nil
}

// difference says where the snapshot and storage part.
func (c *comparison) difference() string {
	if all := c.snapshot.All(); c.first == "" && c.seen < len(all) {
		return fmt.Sprintf("which has nothing where the cache has %q at %d", all[c.seen].Key, all[c.seen].RV)
	}
	return c.first
}

// A cache that is checked or listed because of a doubt is not so again before a pause,
// which doubles each time, for good: a difference that stays, or requests of a client,
// must not make the cache compare or list all the time.
const (
	doubtPause    = 10 * time.Second
	doubtPauseMax = time.Hour
)

// trust records known errors of the state. A doubtful state was found to differ from
// storage and must be listed again; until then storage answers consistent reads and
// reads of earlier versions.
type trust struct {
	clock    clock.PassiveClock
	doubtful atomic.Bool
	// from is the lowest resourceVersion that can be shown by undoing events:
	// earlier ones may lack events.
	from atomic.Uint64
	// mended is nil, or the last list that has mended the state at its own resourceVersion.
	mended atomic.Pointer[mendedState]
	// lists is how often the state was listed.
	lists atomic.Uint64
	// check makes the consistency checker run now.
	check chan struct{}

	mu struct {
		sync.Mutex
		// settled is closed at the end of the doubt; nil without one.
		settled chan struct{}
		// failed: the last check has found the difference differs, after so many
		// lists. named: the difference has survived a list.
		failed, named bool
		differs       watchcache.Digest
		after         uint64
		// notBefore is when the next doubt may be followed up, but for the first
		// list, and pause the time until the one after that.
		notBefore time.Time
		pause     time.Duration
		// ordered is the number of the last list that a doubt has asked for.
		ordered uint64
	}
}

// mendedFor is for how long nobody resumes at the version of a list that has mended the
// state: longer than a client of client-go waits before it tries again (30 s, which
// chance may double).
const mendedFor = 5 * time.Minute

// mendedState is a version at which clients have seen a wrong state, and later the right
// one. A client's resourceVersion does not show which.
type mendedState struct {
	rv   uint64
	when time.Time
}

// mendedAt notes that a list at the state's own version has changed it.
func (t *trust) mendedAt(rv uint64) { t.mended.Store(&mendedState{rv, t.clock.Now()}) }

// ambiguous reports whether a client that resumes at rv may have a wrong state. It lists
// then. On a storage that stays idle, one that has listed just now does so as well, until
// mendedFor has passed.
func (t *trust) ambiguous(rv uint64) bool {
	m := t.mended.Load()
	return m != nil && m.rv == rv && t.clock.Since(m.when) < mendedFor
}

func newTrust(c clock.PassiveClock) *trust {
	return &trust{clock: c, check: make(chan struct{}, 1)}
}

// doubt sets whether the state is doubtful, with mu held.
func (t *trust) doubt(doubtful bool) {
	switch {
	case doubtful && t.mu.settled == nil:
		t.mu.settled = make(chan struct{})
	case !doubtful && t.mu.settled != nil:
		close(t.mu.settled)
		t.mu.settled = nil
	}
	t.doubtful.Store(doubtful)
}

// wait waits for the end of a doubt. relisted reports whether a list has ended it, and
// not a comparison.
func (t *trust) wait(ctx context.Context, late <-chan time.Time) (relisted bool, err error) {
	t.mu.Lock()
	settled, lists := t.mu.settled, t.lists.Load()
	t.mu.Unlock()
	if settled == nil {
		return false, nil
	}
	select {
	case <-settled:
		return t.lists.Load() != lists, nil
	case <-late:
		return false, errDoubtful
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// listed notes that the state was listed, at rv.
func (t *trust) listed(rv uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lists.Add(1)
	if t.doubtful.Load() || (rv < t.from.Load() && !t.mu.named) {
		t.from.Store(rv)
	}
	t.doubt(false)
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
	t.doubt(false)
	t.mu.failed, t.mu.named = false, false
}

// failed records that the state, of the given list, differs from storage, and returns
// when it must be listed again: at once the first time. due is false if the difference
// was the same before a list: events are not the cause, and another list won't help,
// because storage has objects under other keys than the cache. The cache then shows
// storage's list, but can't vouch for earlier versions.
func (t *trust) failed(list uint64, differs watchcache.Digest) (after time.Duration, due bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lists.Load() != list {
		return 0, true // takeList looks whether it still is
	}
	first := !t.mu.failed
	t.mu.named = !first && t.mu.differs == differs && (t.mu.named || t.mu.after < list)
	t.mu.failed, t.mu.differs, t.mu.after = true, differs, list
	t.from.Store(math.MaxUint64)
	t.doubt(!t.mu.named)
	if !first {
		after = max(0, t.mu.notBefore.Sub(t.clock.Now()))
	}
	return after, !t.mu.named
}

// takeList reports whether the state is still doubtful. The caller lists it again.
func (t *trust) takeList() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.doubtful.Load() {
		return false
	}
	if next := t.lists.Load() + 1; t.mu.ordered != next { // the order before was met
		t.mu.ordered = next
		t.backOff()
	}
	return true
}

// backOff begins a pause, with mu held.
func (t *trust) backOff() {
	t.mu.pause = min(max(2*t.mu.pause, doubtPause), doubtPauseMax)
	t.mu.notBefore = t.clock.Now().Add(t.mu.pause)
}

// suspect reports whether a suspicion must be checked.
func (t *trust) suspect() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.named || t.doubtful.Load() || t.clock.Now().Before(t.mu.notBefore) {
		return false
	}
	t.backOff()
	t.from.Store(math.MaxUint64)
	t.doubt(true)
	return true
}

// distrust takes the state for wrong until it was listed again. The caller orders
// the list.
func (t *trust) distrust() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.from.Store(math.MaxUint64)
	t.doubt(true)
}

// suspect takes a hint that the cache is wrong. The cache is compared with storage
// at once, and doubted until that is done. If checks are switched off, it relists.
func (e *engine) suspect(err error) {
	if !e.trust.suspect() {
		return
	}
	e.warn("contradicts", "The watch cache contradicts its storage: it is compared with it or listed again, and consistent reads go to storage until then", err, remedyDifference)
	if e.config.ConsistencyCheckInterval < 0 {
		e.relist(metrics.RelistInconsistent)
		return
	}
	select {
	case e.trust.check <- struct{}{}:
	default:
	}
}
