// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// GetList implements storage.Interface.
func (s *Store) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	if err := s.request(ctx, "list"); err != nil {
		return err
	}
	key, err := storage.PrepareKey(s.prefix, key, opts.Recursive)
	if err != nil {
		return err
	}
	exact, from, err := storage.ValidateListOptions(key, s.versioner, opts)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rv, err := s.listedLocked(key, opts, exact, from)
	if err != nil {
		return err
	}
	if corrupt := s.corruptLocked(rv); corrupt != nil {
		return corrupt
	}
	state := s.stateLocked(rv)
	keys := keysOf(state, key, opts.Recursive, from)
	pointer, err := meta.GetItemsPtr(out)
	if err != nil {
		return err
	}
	items := reflect.ValueOf(pointer).Elem()
	items.Set(reflect.MakeSlice(items.Type(), 0, len(keys)))
	token, remaining, err := "", (*int64)(nil), error(nil)
	for i, k := range keys {
		if matches, err := opts.Predicate.Matches(state[k]); err == nil && matches {
			items.Set(reflect.Append(items, reflect.ValueOf(s.decoded(state[k])).Elem()))
		}
		if limit := opts.Predicate.Limit; limit > 0 && int64(items.Len()) == limit && i+1 < len(keys) {
			token, remaining, err = storage.PrepareContinueToken(k, key, int64(rv), int64(len(keys)), true, opts)
			break
		}
	}
	if err != nil {
		return err
	}
	return s.versioner.UpdateList(out, rv, token, remaining)
}

// listedLocked returns the version to list at, or why there is none.
func (s *Store) listedLocked(key string, opts storage.ListOptions, exact int64, from string) (uint64, error) {
	switch {
	case exact <= 0 && from == "":
		return s.mu.rv, s.notOlderThanLocked(opts.ResourceVersion)
	case exact <= 0:
		return s.mu.rv, nil
	case uint64(exact) > s.mu.rv:
		return 0, storage.NewTooLargeResourceVersionError(uint64(exact), s.mu.rv, 0)
	case uint64(exact) >= s.mu.compacted:
		return uint64(exact), nil
	}
	expired := apierrors.NewResourceExpired("memstore: the version has been compacted")
	if from != "" {
		// A client that pages may go on at the latest version.
		token, err := storage.EncodeContinue(from, key, -1)
		if err != nil {
			return 0, err
		}
		expired.ErrStatus.Continue = token
	}
	return 0, expired
}

// KeyVersion is a key and the resourceVersion of its last write.
type KeyVersion struct {
	Key string
	RV  uint64
}

// KeysAt returns the keys under prefix as of rv, which must not be compacted,
// in order.
func (s *Store) KeysAt(prefix string, rv uint64) (keys []KeyVersion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.stateLocked(rv)
	for _, key := range keysOf(state, prefix, true, "") {
		version, err := s.versioner.ObjectResourceVersion(state[key])
		if err != nil {
			panic(fmt.Sprintf("memstore: %q: %v", key, err))
		}
		keys = append(keys, KeyVersion{Key: key, RV: version})
	}
	return keys
}

// assign copies the object's top level; what is below is shared and must not
// be written to.
func assign(out, object runtime.Object) error {
	if out != nil {
		reflect.ValueOf(out).Elem().Set(reflect.ValueOf(object.DeepCopyObject()).Elem())
	}
	return nil
}
