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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage"
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
	spread := func() time.Duration { return wait.Jitter(e.config.ConsistencyCheckInterval, 0.5) }
	next := e.config.Clock.Now().Add(spread())
	for {
		pause := next.Sub(e.config.Clock.Now())
		if list, due := e.trust.untilList(); due {
			pause = min(pause, list)
		}
		select {
		case <-e.config.Clock.After(max(0, pause)):
		case <-e.trust.check:
			next = e.config.Clock.Now()
		case <-ctx.Done():
			return
		}
		if !e.config.Clock.Now().Before(next) {
			e.checkConsistency(ctx)
			next = e.config.Clock.Now().Add(spread())
		}
		if e.trust.takeList() {
			e.relist(metrics.RelistInconsistent)
		}
	}
}

// checkConsistency compares the latest snapshot with storage at the same
// resourceVersion. If they differ, events were missed unnoticed (KEP-4988).
func (e *engine) checkConsistency(ctx context.Context) {
	if !e.readiness.ready() {
		return
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
		e.trust.unresolved()
		return
	}
	differs := compared.stored ^ compared.snapshot.Digest()
	if differs == 0 {
		e.metrics.ConsistencyCheck(metrics.CheckPassed)
		e.trust.passed(list, rv)
		return
	}
	e.metrics.ConsistencyCheck(metrics.CheckFailed)
	err := faultf(keyFaultf(nil, "%s", compared.difference()), "the cache of %s differs at resourceVersion %d from its storage", e.config.GroupResource, rv)
	if e.trust.failed(list, differs, e.config.ConsistencyCheckInterval) {
		e.warn("differs", "The watch cache has missed events: it is listed again, and consistent reads go to storage until then", err, remedyDifference)
		return
	}
	e.warn("elsewhere", "The watch cache and its storage know objects by different keys, also after a list: earlier resourceVersions are read from storage", err,
		"look for objects that are stored under another key than their names say")
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
	opts := storage.ListOptions{
		ResourceVersion: fmt.Sprint(rv), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		Predicate: storage.Everything, Recursive: true,
	}
	opts.Predicate.Limit = checkPageSize
	for {
		list := e.config.NewListFunc()
		if err := e.config.Storage.GetList(ctx, e.config.ResourcePrefix, opts, list); err != nil {
			return err
		}
		if err := meta.EachListItem(list, func(object runtime.Object) error { return e.visitListed(object, visit) }); err != nil {
			return err
		}
		accessor, err := meta.ListAccessor(list)
		if err != nil {
			return err
		}
		if opts.Predicate.Continue = accessor.GetContinue(); opts.Predicate.Continue == "" {
			return nil
		}
		opts.ResourceVersion, opts.ResourceVersionMatch = "", "" // the token has them
	}
}

func (e *engine) visitListed(object runtime.Object, visit func(key string, rv uint64) error) error {
	key, err := e.config.KeyFunc(object)
	if err != nil {
		return err
	}
	rv, err := e.config.Versioner.ObjectResourceVersion(object)
	if err != nil {
		return err
	}
	return visit(key, rv)
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

// suspicionPause is the least time between two suspicions that are followed
// up. The pause doubles with each, up to suspicionPauseMax, for good: requests
// of a client must not make the cache compare or list all the time.
const (
	suspicionPause    = 10 * time.Second
	suspicionPauseMax = time.Hour
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
	t.doubt(false)
	t.mu.failures, t.mu.named = 0, false
	t.mu.dueList = time.Time{}
}

// failed records that the state, of the given list, differs from storage. It reports
// whether the state is now doubtful and must be listed again: at once the first time,
// later after longer and longer pauses, up to eight intervals between checks. If the
// difference was the same before a list, events are not the cause, and another list
// won't help: storage has objects under other keys than the cache. The cache then
// shows storage's list, but can't vouch for earlier versions.
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
	t.doubt(!t.mu.named)
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

// untilList returns the time until the next list of a doubtful state, if one is due.
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

// suspect reports whether a suspicion must be checked.
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
