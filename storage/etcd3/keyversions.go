// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// keysPerTxn is the most keys read by one transaction. We halve it if etcd refuses a
	// transaction for its --max-txn-ops, 128 by default.
	keysPerTxn = 100
	// txnTries and txnPause limit retries of a transaction. The client retries other reads itself,
	// but not transactions, which may write.
	txnTries = 100
	txnPause = 25 * time.Millisecond
)

// KeyVersions returns the resourceVersion of the last write to each key, 0 for a missing key,
// parallel to keys. The read is linearizable: all are as of current, storage's resourceVersion at
// some time after the call began.
//
// Keys have the form of storage.Interface, without Config.Prefix. Values are not sent over the
// network. More than a hundred keys take several requests at one resourceVersion; if etcd compacts
// it in between, the error is "expired" (410). Without keys only current is returned.
func (s *store) KeyVersions(ctx context.Context, keys []string) (versions []uint64, current uint64, err error) {
	if s.isClosed() {
		return nil, 0, s.errClosed()
	}
	paths := make([]string, len(keys))
	for i, key := range keys {
		if key, err = storage.PrepareKey(s.resourcePrefix, key, false); err != nil {
			return nil, 0, fmt.Errorf("etcd3: %s: %w", s.resource, err)
		}
		paths[i] = s.pathPrefix + key
	}
	if len(keys) == 0 {
		// We can't use an empty transaction, which etcd may answer with old data.
		current, err = s.GetCurrentResourceVersion(ctx)
		return []uint64{}, current, err
	}
	versions = make([]uint64, 0, len(keys))
	for len(versions) < len(keys) {
		chunk := paths[len(versions):min(len(versions)+s.backend.keysAtOnce(), len(paths))]
		answers, revision, err := s.readKeys(ctx, chunk, int64(current))
		switch {
		case err == nil:
		case errors.Is(err, rpctypes.ErrTooManyOps) && len(chunk) > 1:
			s.backend.readFewer(len(chunk))
			continue
		case s.isClosed():
			return nil, 0, s.errClosed()
		case errors.Is(err, rpctypes.ErrCompacted):
			return nil, 0, apierrors.NewResourceExpired(fmt.Sprintf("etcd3: %s: resourceVersion %d was compacted while keys were read", s.resource, current))
		default:
			return nil, 0, fmt.Errorf("etcd3: %s: reading the versions of %d keys, from %q on: %w", s.resource, len(keys), keys[len(versions)], err)
		}
		if current == 0 {
			current = uint64(revision)
		}
		for _, answer := range answers {
			version := uint64(0)
			if kvs := answer.GetKvs(); len(kvs) > 0 {
				version = uint64(kvs[0].GetModRevision())
			}
			versions = append(versions, version)
		}
	}
	return versions, current, nil
}

func (b *Backend) keysAtOnce() int { return cmp.Or(int(b.fewerKeys.Load()), keysPerTxn) }

// readFewer halves the keys per transaction after etcd refused one.
func (b *Backend) readFewer(keys int) {
	before := b.fewerKeys.Load()
	if keys > b.keysAtOnce() || !b.fewerKeys.CompareAndSwap(before, int64(keys/2)) {
		return // sent before another one was refused
	}
	b.cfg.Logger.Warn("etcd takes few operations in a transaction, so that concurrent GETs share smaller requests: raise its --max-txn-ops",
		zap.Int("refused", keys), zap.Int("keys", keys/2))
}

// readKeys reads keys of etcd, without values, at revision, where 0 means the latest. The answers
// are parallel to paths.
func (s *store) readKeys(ctx context.Context, paths []string, revision int64) (answers []*etcdserverpb.RangeResponse, at int64, err error) {
	kv := s.backend.Client().KV
	if len(paths) == 1 {
		resp, err := kv.Get(ctx, paths[0], clientv3.WithKeysOnly(), clientv3.WithRev(revision))
		if err != nil {
			return nil, 0, err
		}
		return []*etcdserverpb.RangeResponse{(*etcdserverpb.RangeResponse)(resp)}, resp.Header.GetRevision(), nil
	}
	ops := make([]clientv3.Op, len(paths))
	for i, path := range paths {
		ops[i] = clientv3.OpGet(path, clientv3.WithKeysOnly(), clientv3.WithRev(revision))
	}
	resp, err := retryTxn(ctx, kv, ops)
	if err != nil {
		return nil, 0, err
	}
	for _, op := range resp.Responses {
		answers = append(answers, op.GetResponseRange())
	}
	if len(answers) != len(paths) {
		return nil, 0, fmt.Errorf("the server answered for %d keys of %d", len(answers), len(paths))
	}
	return answers, resp.Header.GetRevision(), nil
}

// retryTxn sends a read-only transaction, and repeats it while no etcd is available.
func retryTxn(ctx context.Context, kv clientv3.KV, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	for try := 1; ; try++ {
		resp, err := kv.Txn(ctx).Then(ops...).Commit()
		if err == nil || try == txnTries || !unavailable(err) {
			return resp, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%w)", ctx.Err(), err)
		case <-time.After(txnPause):
		}
	}
}

func unavailable(err error) bool {
	if known, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return known.Code() == codes.Unavailable
	}
	return status.Code(err) == codes.Unavailable
}
