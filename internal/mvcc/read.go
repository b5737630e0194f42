// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"context"
	"fmt"
	"iter"
	"reflect"
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
		return assign(out, v.object)
	case opts.IgnoreNotFound:
		return runtime.SetZeroValue(out)
	}
	return storage.NewKeyNotFoundError(key, int64(rv))
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
	var items []runtime.Object
	last, total, more := "", int64(0), false
	for v := range scan(view, key, opts.Recursive, from) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		total++
		if more = opts.Predicate.Limit > 0 && int64(len(items)) == opts.Predicate.Limit; more {
			if !opts.Predicate.Empty() {
				break // nobody wants to know how many follow
			}
			continue
		}
		last = v.key
		matches, err := opts.Predicate.Matches(v.object)
		if err != nil {
			return err
		}
		if matches {
			items = append(items, v.object)
		}
	}
	if err := meta.SetList(out, items); err != nil {
		return err
	}
	token, remaining, err := storage.PrepareContinueToken(last, key, int64(rv), total, more, opts)
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

// viewAt returns the state at exactly rv, or the current one for 0, and its version.
func (s *Store) viewAt(rv uint64) (*btree.BTree[*version], uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch floor := s.floorLocked(); {
	case rv == 0:
		rv = s.mu.rv
	case rv > s.mu.rv:
		return nil, 0, storage.NewTooLargeResourceVersionError(rv, s.mu.rv, 0)
	case rv < floor:
		return nil, 0, apierrors.NewResourceExpired(fmt.Sprintf("The resourceVersion for the provided list is too old: %d, the oldest one is %d", rv, floor))
	}
	return s.undoneLocked(rv), rv, nil
}

// floorLocked returns the oldest version that the store has.
func (s *Store) floorLocked() uint64 { return max(s.mu.compacted, s.mu.oldest.after.rv) }

// undoneLocked returns a copy of the state without the changes after rv.
func (s *Store) undoneLocked(rv uint64) *btree.BTree[*version] {
	view := s.mu.tree.Clone()
	if rv >= s.mu.newest.after.rv {
		return view
	}
	undone := map[string]bool{}
	for c := s.mu.oldest.next; c != nil; c = c.next {
		switch {
		case c.after.rv <= rv || undone[c.after.key]:
			continue
		case c.before == nil:
			view.Delete(c.after)
		default:
			view.ReplaceOrInsert(c.before)
		}
		undone[c.after.key] = true
	}
	return view
}

// scan yields the object at key, or all below it if recursive, in the order of keys.
func scan(view *btree.BTree[*version], key string, recursive bool, from string) iter.Seq[*version] {
	return func(yield func(*version) bool) {
		view.AscendGreaterOrEqual(&version{key: max(key, from)}, func(v *version) bool {
			return inScope(v.key, key, recursive) && yield(v)
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
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := visit(v.key, v.rv); err != nil {
			return err
		}
	}
	return nil
}
