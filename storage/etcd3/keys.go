// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"
)

const keysPage = 10_000

// Versions calls visit for each key under prefix as of exactly rv, in key order, with the
// resourceVersion of its last write. Keys have the form of storage.Interface, without
// Config.Prefix. Values are not sent over the network. It returns visit's error, "expired" (410) if
// etcd has compacted rv, or "too large resource version" if rv is in the future.
func (s *store) Versions(ctx context.Context, prefix string, rv uint64, visit func(key string, rv uint64) error) error {
	prefix, err := storage.PrepareKey(s.resourcePrefix, prefix, true)
	if err != nil {
		return err
	}
	start := s.pathPrefix + prefix
	opts := []clientv3.OpOption{
		clientv3.WithRange(clientv3.GetPrefixRangeEnd(start)), clientv3.WithRev(int64(rv)),
		clientv3.WithKeysOnly(), clientv3.WithLimit(keysPage),
	}
	for {
		page, err := s.backend.Client().KV.Get(ctx, start, opts...)
		switch {
		case errors.Is(err, rpctypes.ErrCompacted):
			return apierrors.NewResourceExpired(fmt.Sprintf("etcd3: %s: resourceVersion %d was compacted", s.resource, rv))
		case errors.Is(err, rpctypes.ErrFutureRev):
			return storage.NewTooLargeResourceVersionError(rv, 0, 0)
		case err != nil:
			return fmt.Errorf("etcd3: %s: listing keys: %w", s.resource, err)
		}
		for _, kv := range page.Kvs {
			if err := visit(strings.TrimPrefix(string(kv.Key), s.pathPrefix), uint64(kv.ModRevision)); err != nil {
				return err
			}
		}
		if !page.More || len(page.Kvs) == 0 {
			return nil
		}
		start = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}
