// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// checkPageSize is the page size of the lists that a consistency check reads
// from a storage that can't tell versions alone. One page is in memory at a
// time.
const checkPageSize = 500

// versionLister is what a storage may implement so that it can be compared
// with the cache without its objects being read: Versions calls visit for each
// key under prefix as of exactly rv, in the order of keys, with the
// resourceVersion of its last write. Versions fails as an exact LIST would, and
// with visit's error.
type versionLister interface {
	Versions(ctx context.Context, prefix string, rv uint64, visit func(key string, rv uint64) error) error
}

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
			e.relist(metrics.RelistInconsistent, errInconsistent)
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
			e.notCompared(fmt.Errorf("comparing the cache of %s with its storage at resourceVersion %d: %w", e.config.GroupResource, rv, err))
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
	err := fmt.Errorf("the cache of %s differs at resourceVersion %d from its storage, %s", e.config.GroupResource, rv, compared.difference())
	if e.trust.failed(list, differs, e.config.ConsistencyCheckInterval) {
		e.warn("differs", "The watch cache has missed events: it is listed again, and consistent reads go to storage until then", err, remedyDifference)
		return
	}
	e.warn("elsewhere", "The watch cache and its storage know objects by different keys, also after a list: earlier resourceVersions are read from storage", err,
		"look for objects that are stored under another key than their names say")
}

// notCompared notes that a comparison came to nothing. A storage that is away is told
// elsewhere, and one that has compacted the version meanwhile is in order.
func (e *engine) notCompared(err error) {
	const message = "The watch cache could not be compared with its storage. The comparison is tried again"
	switch {
	case apierrors.IsResourceExpired(err):
	case e.contact.inDoubt():
		e.noteError(message, err)
	default:
		e.warn("compare", message, err, "look at the error, and at ConsistencyCheckInterval if a comparison takes longer than that")
	}
}

// storedVersions calls visit for each of the resource's keys in storage as of
// rv, with the resourceVersion of its last write.
func (e *engine) storedVersions(ctx context.Context, rv uint64, visit func(key string, rv uint64) error) error {
	if s, ok := e.config.Storage.(versionLister); ok {
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

// comparison is of a snapshot with the keys of storage, which visit is told in
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
