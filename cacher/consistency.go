// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// What a consistency check has found, as metrics name it.
const (
	checkPassed = "passed"
	checkFailed = "failed"
	checkError  = "error" // it could not be made
)

// versionLister is what a storage may implement so that it can be compared
// with the cache without its objects being read: Versions calls visit for each
// key under prefix as of exactly rv, in the order of keys, with the
// resourceVersion of its last write. It fails as an exact LIST would, and with
// visit's error.
type versionLister interface {
	Versions(ctx context.Context, prefix string, rv uint64, visit func(key string, rv uint64) error) error
}

// followConsistency compares the cache with storage from time to time, until
// the context is done. The times are spread, so that caches that were started
// together don't ask storage together.
func (c *engine) followConsistency(ctx context.Context) {
	if c.config.ConsistencyCheckInterval < 0 {
		return
	}
	for {
		pause := time.Duration(float64(c.config.ConsistencyCheckInterval) * (1 + rand.Float64()/2))
		select {
		case <-c.config.Clock.After(pause):
			c.checkConsistency(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// checkConsistency compares the latest snapshot with storage at the same
// resourceVersion. If they differ, events were missed that nobody has noticed:
// earlier versions, which are made by undoing events, are then read from
// storage, until a check passes (KEP-4988).
func (c *engine) checkConsistency(ctx context.Context) {
	if !c.readiness.ready() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.ConsistencyCheckInterval)
	defer cancel()
	compared := comparison{snapshot: c.state.Latest()}
	rv := compared.snapshot.RV()
	if err := c.storedVersions(ctx, rv, compared.visit); err != nil {
		if ctx.Err() == nil && !apierrors.IsResourceExpired(err) {
			c.noteError(fmt.Errorf("comparing the cache of %s with its storage at resourceVersion %d: %w", c.config.GroupResource, rv, err))
		}
		c.metrics.ConsistencyCheck(checkError)
		return
	}
	if compared.stored == compared.snapshot.Digest() {
		c.metrics.ConsistencyCheck(checkPassed)
		c.readiness.trust(true)
		return
	}
	c.metrics.ConsistencyCheck(checkFailed)
	c.readiness.trust(false)
	err := fmt.Errorf("the cache of %s differs from its storage at resourceVersion %d, %s: earlier versions are read from storage until they agree",
		c.config.GroupResource, rv, compared.difference())
	c.noteError(err)
	klog.ErrorS(err, "The watch cache has missed changes", "resource", c.config.GroupResource)
}

// storedVersions calls visit for each of the resource's keys in storage as of
// rv, with the resourceVersion of its last write.
func (c *engine) storedVersions(ctx context.Context, rv uint64, visit func(key string, rv uint64) error) error {
	if s, ok := c.config.Storage.(versionLister); ok {
		return s.Versions(ctx, c.config.ResourcePrefix, rv, visit)
	}
	opts := storage.ListOptions{
		ResourceVersion: fmt.Sprint(rv), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		Predicate: storage.Everything, Recursive: true,
	}
	opts.Predicate.Limit = listPageSize
	for {
		list := c.config.NewListFunc()
		if err := c.config.Storage.GetList(ctx, c.config.ResourcePrefix, opts, list); err != nil {
			return err
		}
		if err := meta.EachListItem(list, func(object runtime.Object) error { return c.visitListed(object, visit) }); err != nil {
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

func (c *engine) visitListed(object runtime.Object, visit func(key string, rv uint64) error) error {
	key, err := c.config.KeyFunc(object)
	if err != nil {
		return err
	}
	rv, err := c.config.Versioner.ObjectResourceVersion(object)
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
