// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/third_party/forked/golang/btree"
)

// Get implements storage.Interface.
func (s *Store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	key, err := storage.PrepareKey(s.config.Prefix, key, false)
	if err != nil {
		return err
	}
	v, rv := s.current(key)
	if err := s.notOlder(opts.ResourceVersion, rv); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case v != nil:
		return assign(out, v.Object)
	case opts.IgnoreNotFound:
		return runtime.SetZeroValue(out)
	}
	return storage.NewKeyNotFoundError(key, int64(rv))
}

// current returns the object at a key, nil if there is none, and the store's version.
func (s *Store) current(key string) (*Version, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.Get(key), s.mu.RV
}

// notOlder fails for a version that the store has not reached at rv.
func (s *Store) notOlder(resourceVersion string, rv uint64) error {
	least, err := s.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if least > rv {
		return storage.NewTooLargeResourceVersionError(least, rv, 0)
	}
	return nil
}

// assign copies an object into out, unless that is nil.
func assign(out, object runtime.Object) error {
	if out == nil {
		return nil
	}
	to, from := reflect.ValueOf(out), reflect.ValueOf(object.DeepCopyObject())
	if to.Type() != from.Type() {
		return fmt.Errorf("the object is a %T and does not fit a %T", object, out)
	}
	to.Elem().Set(from.Elem())
	return nil
}

// GetList implements storage.Interface.
func (s *Store) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	key, err := storage.PrepareKey(s.config.Prefix, key, opts.Recursive)
	if err != nil {
		return err
	}
	exact, from, err := storage.ValidateListOptions(key, s.versioner, opts)
	if err != nil {
		return err
	}
	view, rv, err := s.viewAt(uint64(exact))
	if err == nil && exact == 0 && from == "" {
		err = s.notOlder(opts.ResourceVersion, rv)
	}
	switch {
	case apierrors.IsResourceExpired(err) && from != "":
		return pageExpired(from, key)
	case err != nil:
		return err
	}
	found, n, limit := slices.Collect(scan(view, key, opts.Recursive, from)), 0, int(opts.Predicate.Limit)
	var items []runtime.Object
	for ; n < len(found) && (limit <= 0 || len(items) < limit); n++ {
		matches, err := opts.Predicate.Matches(found[n].Object)
		if err = cmp.Or(ctx.Err(), err); err != nil {
			return err
		}
		if matches {
			items = append(items, found[n].Object)
		}
	}
	last := ""
	if n > 0 {
		last = found[n-1].Key
	}
	if err := meta.SetList(out, items); err != nil {
		return err
	}
	token, remaining, err := storage.PrepareContinueToken(last, key, int64(rv), int64(len(found)), n < len(found), opts)
	if err != nil {
		return err
	}
	return s.versioner.UpdateList(out, rv, token, remaining)
}

// pageExpired answers a page of a version that is gone. With its token, a client may go
// on at the latest version.
func pageExpired(from, key string) error {
	token, err := storage.EncodeContinue(from, key, -1)
	if err != nil {
		return err
	}
	status := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result: the list can be continued, inconsistently, with the token of this error, or begun again")
	status.ErrStatus.Continue = token
	return status
}

// viewAt returns the objects as of exactly rv, or the current ones for 0, and that version.
func (s *Store) viewAt(rv uint64) (*btree.BTree[*Version], uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case rv == 0:
		rv = s.mu.RV
	case rv > s.mu.RV:
		return nil, 0, storage.NewTooLargeResourceVersionError(rv, s.mu.RV, 0)
	case rv < s.mu.floor:
		return nil, 0, apierrors.NewResourceExpired(fmt.Sprintf("The resourceVersion for the provided list is too old: %d, the oldest one is %d", rv, s.mu.floor))
	}
	return s.mu.at(rv), rv, nil
}

// scan yields the object at key, or all below it if recursive, in the order of keys.
func scan(view *btree.BTree[*Version], key string, recursive bool, from string) iter.Seq[*Version] {
	return func(yield func(*Version) bool) {
		view.AscendGreaterOrEqual(&Version{Key: max(key, from)}, func(v *Version) bool {
			return inScope(v.Key, key, recursive) && yield(v)
		})
	}
}

// inScope reports whether a key is the one asked for or below it.
func inScope(key, of string, recursive bool) bool {
	return key == of || recursive && strings.HasPrefix(key, of)
}

// Versions implements capability.VersionLister.
func (s *Store) Versions(ctx context.Context, prefix string, rv uint64, visit func(key string, rv uint64) error) error {
	view, _, err := s.viewAt(rv)
	if err != nil {
		return err
	}
	for v := range scan(view, prefix, true, "") {
		if err := cmp.Or(ctx.Err(), visit(v.Key, v.RV)); err != nil {
			return err
		}
	}
	return nil
}

// KeyVersions implements capability.KeyVersioner.
func (s *Store) KeyVersions(ctx context.Context, keys []string) (versions []uint64, current uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions = make([]uint64, len(keys))
	for i, key := range keys {
		if _, err := storage.PrepareKey(s.config.Prefix, key, false); err != nil {
			return nil, 0, err
		}
		if v := s.mu.Get(key); v != nil {
			versions[i] = v.RV
		}
	}
	return versions, s.mu.RV, ctx.Err()
}

// GetCurrentResourceVersion implements storage.Interface.
func (s *Store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	_, rv, err := s.KeyVersions(ctx, nil)
	return rv, err
}

// CompactRevision implements storage.Interface. Versions that have left the window are
// not compacted in this sense: a cache over the store may keep them for longer.
func (s *Store) CompactRevision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.mu.compacted)
}

// Stats implements storage.Interface.
func (s *Store) Stats(ctx context.Context) (storage.Stats, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return storage.Stats{ObjectCount: int64(s.mu.tree.Len())}, ctx.Err()
}

// EnableResourceSizeEstimation implements storage.Interface. Nothing is stored in bytes.
func (s *Store) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// Versioner implements storage.Interface.
func (s *Store) Versioner() storage.Versioner { return s.versioner }

// ReadinessCheck implements storage.Interface.
func (s *Store) ReadinessCheck() error { return nil }

// WatchProgress implements capability.ProgressReporter: requests are always answered.
func (s *Store) WatchProgress() bool { return true }

// KeepsHistory implements capability.HistoryKeeper.
func (s *Store) KeepsHistory() bool { return true }
