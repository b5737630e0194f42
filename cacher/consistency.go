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
	var (
		next    = pause()
		list    <-chan time.Time // when the cache must be listed again for a doubt
		doubted *doubt
	)
	for {
		select {
		case <-list:
			if list = nil; e.trust.takeList(doubted) {
				e.relist(metrics.RelistInconsistent)
			}
			continue
		case <-next:
		case <-e.trust.check:
		case <-ctx.Done():
			return
		}
		after := e.checkConsistency(ctx)
		// A state that can't be compared is listed as well, but not before a check that is ordered.
		if now := e.trust.doubt.Load(); now != nil && (now != doubted || list == nil) && len(e.trust.check) == 0 {
			doubted, list = now, e.config.Clock.After(after)
		}
		next = pause()
	}
}

// checkConsistency compares the latest snapshot with storage at the same
// resourceVersion. If they differ, events were missed unnoticed (KEP-4988): the state is
// doubtful then, and listed again after the time that is returned.
func (e *engine) checkConsistency(ctx context.Context) (after time.Duration) {
	if !e.readiness.ready() {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.ConsistencyCheckInterval)
	defer cancel()
	list, doubted := e.trust.listCount.Load(), e.trust.doubt.Load()
	latest := e.state.Latest()
	rv, compared := latest.RV(), comparison{cached: latest.All()}
	if err := e.storedVersions(ctx, rv, compared.visit); err != nil {
		if e.ctx.Err() == nil {
			e.notCompared(faultf(err, "comparing the cache of %s with its storage at resourceVersion %d", e.config.GroupResource, rv))
		}
		e.metrics.ConsistencyCheck(metrics.CheckError)
		return 0
	}
	differs := compared.stored ^ latest.Digest()
	if differs == 0 {
		e.metrics.ConsistencyCheck(metrics.CheckPassed)
		e.trust.passed(list, rv, doubted)
		return 0
	}
	e.metrics.ConsistencyCheck(metrics.CheckFailed)
	err := faultf(keyFaultf(nil, "%s", compared.difference()), "the cache of %s differs at resourceVersion %d from its storage", e.config.GroupResource, rv)
	after, helps := e.trust.failed(list, differs, doubted)
	if helps {
		e.warn("differs", "The watch cache has missed events: it is listed again, and consistent reads go to storage until then", err, remedyDifference)
	} else {
		e.warn("elsewhere", "The watch cache and its storage know objects by different keys, also after a list: earlier resourceVersions are read from storage", err,
			"look for objects that are stored under another key than their names say")
	}
	return after
}

// notCompared logs a comparison that failed. The loss of storage is logged
// elsewhere, and a storage that has compacted the version meanwhile is in order.
func (e *engine) notCompared(err error) {
	const message = "The watch cache could not be compared with its storage. The comparison is tried again"
	switch {
	case apierrors.IsResourceExpired(err):
	case e.health.unresponsive():
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
	cached []*watchcache.Element // of the snapshot, from where storage has come to
	stored watchcache.Digest
	first  string // where the two part, "" as long as they don't
}

func (c *comparison) visit(key string, rv uint64) error {
	c.stored.Toggle(key, rv)
	switch {
	case c.first != "":
	case len(c.cached) == 0:
		c.first = fmt.Sprintf("which has %q at %d beyond the cache's last key", key, rv)
	case c.cached[0].Key != key || c.cached[0].RV != rv:
		c.first = fmt.Sprintf("which has %q at %d where the cache has %q at %d", key, rv, c.cached[0].Key, c.cached[0].RV)
	default:
		c.cached = c.cached[1:]
	}
	return nil
}

// difference says where the snapshot and storage part.
func (c *comparison) difference() string {
	if c.first == "" && len(c.cached) > 0 {
		return fmt.Sprintf("which has nothing where the cache has %q at %d", c.cached[0].Key, c.cached[0].RV)
	}
	return c.first
}

// After a check or a list for a doubt, the next one waits for a pause, which doubles each time
// and never shrinks: a difference that stays, or requests of a client, must not make the cache
// compare or list all the time.
const (
	doubtPause    = 10 * time.Second
	doubtPauseMax = time.Hour
)

// trust records known errors of the state. A doubtful state was found to differ from
// storage and must be listed again; until then storage answers consistent reads and
// reads of earlier versions.
type trust struct {
	clock clock.PassiveClock
	// doubt is the present one, nil without one. Written with mu held.
	doubt atomic.Pointer[doubt]
	// from is the lowest resourceVersion that can be shown by undoing events:
	// earlier ones may lack events.
	from atomic.Uint64
	// mended is nil, or the last list at a resourceVersion that watchers had seen events of,
	// of a state that lacked some.
	mended atomic.Pointer[mendedState]
	// listCount is how often the state was listed.
	listCount atomic.Uint64
	// check makes the consistency checker run now.
	check chan struct{}

	mu struct {
		sync.Mutex
		// failed: the last check has found the difference differs, after so many
		// lists. named: the difference has survived a list.
		failed, named bool
		differs       watchcache.Digest
		after         uint64
		// notBefore is when the next doubt may be followed up, but for the first
		// list, and pause the time until the one after that.
		notBefore time.Time
		pause     time.Duration
	}
}

// doubt is a period during which the state is doubtful.
type doubt struct {
	over     chan struct{} // closed at its end
	relisted bool          // a list has ended it, and not a comparison; written before that
	ordered  bool          // it has asked for a list; guarded by trust.mu
	certain  bool          // only a list can end it; likewise
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

// ambiguous reports whether a client that resumes at rv may have a wrong state. It lists
// then. On a storage that stays idle, one that has listed just now does so as well, until
// mendedFor has passed.
func (t *trust) ambiguous(rv uint64) bool {
	m := t.mended.Load()
	return m != nil && m.rv == rv && t.clock.Since(m.when) < mendedFor
}

func (t *trust) doubtful() bool { return t.doubt.Load() != nil }

// begin begins a doubt unless there is one, with mu held.
func (t *trust) begin() {
	t.from.Store(math.MaxUint64)
	t.doubt.CompareAndSwap(nil, &doubt{over: make(chan struct{})})
}

// settle ends a doubt if a comparison can, with mu held: not one about which more is known,
// and none that has begun after the comparison.
func (t *trust) settle(doubted *doubt) bool {
	d := t.doubt.Load()
	switch {
	case d == nil:
		return true
	case d != doubted || d.certain:
		return false
	}
	t.doubt.Store(nil)
	close(d.over)
	return true
}

// wait waits for the end of a doubt, but not for longer than patience. relisted reports
// whether a list has ended it.
func (t *trust) wait(ctx context.Context, patience time.Duration) (relisted bool, err error) {
	d := t.doubt.Load()
	if d == nil {
		return false, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errDoubtful)
	defer cancel()
	select {
	case <-d.over:
		return d.relisted, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// listed notes that the state was listed, at rv, and returns the doubt that this ends, nil
// without one. The caller ends it.
func (t *trust) listed(rv uint64) *doubt {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listCount.Add(1)
	d := t.doubt.Load()
	if d != nil || (rv < t.from.Load() && !t.mu.named) {
		t.from.Store(rv)
	}
	return d
}

// end ends a doubt because the state was listed.
func (t *trust) end(d *doubt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d.relisted = true
	t.doubt.Store(nil)
	close(d.over)
}

// passed notes that the state, of the given list, was found to agree with storage at rv by a
// comparison that has begun in the given doubt, nil without one.
func (t *trust) passed(list, rv uint64, doubted *doubt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listCount.Load() != list || !t.settle(doubted) {
		return
	}
	t.from.CompareAndSwap(math.MaxUint64, rv)
	t.mu.failed, t.mu.named = false, false
}

// failed records that the state, of the given list, differs from storage, and returns
// when it must be listed again: at once the first time. helps is false if the difference
// was the same before a list: events are not the cause, and another list won't help,
// because storage has objects under other keys than the cache. The cache then shows
// storage's list, but can't vouch for earlier versions.
func (t *trust) failed(list uint64, differs watchcache.Digest, doubted *doubt) (after time.Duration, helps bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listCount.Load() != list {
		return 0, true // it was
	}
	first := !t.mu.failed
	t.mu.named = !first && t.mu.differs == differs && (t.mu.named || t.mu.after < list)
	t.mu.failed, t.mu.differs, t.mu.after = true, differs, list
	if t.from.Store(math.MaxUint64); t.mu.named {
		t.settle(doubted)
	} else {
		t.begin()
	}
	if !first {
		after = max(0, t.mu.notBefore.Sub(t.clock.Now()))
	}
	return after, !t.mu.named
}

// takeList reports whether a doubt goes on. The caller lists the state again.
func (t *trust) takeList(d *doubt) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.doubt.Load() != d || d.certain { // who is certain has ordered it
		return false
	}
	if !d.ordered { // or else the order before was not met yet
		d.ordered = true
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
	if t.mu.named || t.doubtful() || t.clock.Now().Before(t.mu.notBefore) {
		return false
	}
	t.backOff()
	t.begin()
	return true
}

// distrust takes the state for wrong until it was listed again. The caller orders
// the list.
func (t *trust) distrust() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin()
	t.doubt.Load().certain = true
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
