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

	"github.com/kube-watchcache/watchcache/internal/minors"
)

// Get implements storage.Interface.
func (s *Store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	key, err := storage.PrepareKey(s.config.Prefix, key, false)
	if err != nil {
		return err
	}
	v, rv := s.current(key)
	switch err := cmp.Or(ctx.Err(), notOlder(opts.ResourceVersion, rv)); {
	case err != nil:
		return err
	case v != nil:
		return assign(out, v.Object)
	case opts.IgnoreNotFound:
		return runtime.SetZeroValue(out)
	}
	return storage.NewKeyNotFoundError(key, int64(rv))
}

// current returns the object at a key (or nil) and the store's resourceVersion.
func (s *Store) current(key string) (*Version, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.Get(key), s.mu.RV
}

// notOlder returns an error if resourceVersion is newer than rv.
func notOlder(resourceVersion string, rv uint64) error {
	least, err := versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return minors.MalformedVersion(err)
	}
	if least > rv {
		return storage.NewTooLargeResourceVersionError(least, rv, 0)
	}
	return nil
}

// assign copies object into out, unless out is nil.
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
	exact, from, err := storage.ValidateListOptions(key, versioner, opts)
	if err != nil {
		return err
	}
	view, rv, err := s.viewAt(uint64(exact))
	if err == nil && exact == 0 && from == "" {
		err = notOlder(opts.ResourceVersion, rv)
	}
	if gone, ok := err.(*apierrors.StatusError); ok && from != "" && apierrors.IsResourceExpired(err) {
		gone.ErrStatus.Message = "The provided continue parameter is too old to display a consistent list result: the list can be continued, inconsistently, with the token of this error, or begun again"
		gone.ErrStatus.Continue, err = storage.EncodeContinue(from, key, -1)
		err = cmp.Or[error](err, gone)
	}
	if err != nil {
		return err
	}
	var items []runtime.Object
	last, found, full := "", int64(0), false
	for v := range scan(view, key, opts.Recursive, from) {
		found++
		if full = opts.Predicate.Limit > 0 && int64(len(items)) == opts.Predicate.Limit; full {
			continue // counts the rest
		}
		matches, err := opts.Predicate.Matches(v.Object)
		if err = cmp.Or(ctx.Err(), err); err != nil {
			return err
		}
		if last = v.Key; matches {
			items = append(items, v.Object)
		}
	}
	if err := meta.SetList(out, items); err != nil {
		return err
	}
	token, remaining, err := storage.PrepareContinueToken(last, key, int64(rv), found, full, opts)
	if err != nil {
		return err
	}
	return versioner.UpdateList(out, rv, token, remaining)
}

// viewAt returns the objects at exactly rv, where 0 means the current version.
func (s *Store) viewAt(rv uint64) (*btree.BTree[*Version], uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rv = cmp.Or(rv, s.mu.RV)
	view, err := s.mu.At(rv)
	return view, rv, err
}

// scan yields the object at key, or if recursive all objects below it, in key order.
func scan(view *btree.BTree[*Version], key string, recursive bool, from string) iter.Seq[*Version] {
	return func(yield func(*Version) bool) {
		view.AscendGreaterOrEqual(&Version{Key: max(key, from)}, func(v *Version) bool {
			return inScope(v.Key, key, recursive) && yield(v)
		})
	}
}

// inScope reports whether a key is of, or below it.
func inScope(key, of string, recursive bool) bool {
	return key == of || recursive && strings.HasPrefix(key, of)
}

// Select returns the current versions of all objects, or of those with a value in an index.
func Select(s *Store, index, value string) (found []*Version, rv uint64, err error) {
	if index == "" {
		view, rv, err := s.viewAt(0)
		return slices.Collect(scan(view, s.config.Prefix, true, "")), rv, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.index == nil {
		return nil, 0, fmt.Errorf("there is no index %q", index)
	}
	values, err := s.mu.index.ByIndex(index, value)
	for _, v := range values {
		found = append(found, v.(*Version))
	}
	slices.SortFunc(found, func(a, b *Version) int { return strings.Compare(a.Key, b.Key) })
	return found, s.mu.RV, err
}

// Current returns the current object at a key, or nil.
func Current(s *Store, key string) runtime.Object {
	v, _ := s.current(key)
	return cmp.Or(v, &Version{}).Object
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

// CompactRevision implements storage.Interface. Dropped versions don't count as compacted, because
// a cache over the store may keep them longer.
func (s *Store) CompactRevision() int64 { return 0 }

// Stats implements storage.Interface.
func (s *Store) Stats(ctx context.Context) (storage.Stats, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return storage.Stats{ObjectCount: int64(s.mu.Tree.Len())}, ctx.Err()
}

// EnableResourceSizeEstimation implements storage.Interface. A Store stores no bytes.
func (s *Store) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// Versioner implements storage.Interface.
func (s *Store) Versioner() storage.Versioner { return versioner }

// ReadinessCheck implements storage.Interface.
func (s *Store) ReadinessCheck() error { return nil }

// WatchProgress implements capability.ProgressReporter. A Store always answers requests.
func (s *Store) WatchProgress() bool { return true }

// KeepsHistory implements capability.HistoryKeeper.
func (s *Store) KeepsHistory() bool { return true }
