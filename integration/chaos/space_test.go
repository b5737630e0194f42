// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// filling is where the keys are that take etcd's space.
const filling = "/filling/"

// fillUp writes until etcd raises the alarm NOSPACE, after which etcd refuses all
// writes but deletions. To end it takes what a person would do: delete, compact,
// defragment, disarm. On a busy machine etcd may not answer in time, and is asked
// again.
func fillUp(ctx context.Context, r *run) (func(context.Context) error, error) {
	const pieces, bytes = 200, 1 << 20 // more than the quota
	value := string(make([]byte, bytes))
	var last error
	for i := range pieces {
		_, last = r.direct.Put(ctx, fmt.Sprint(filling, i), value)
		if errors.Is(last, rpctypes.ErrNoSpace) {
			return r.freeSpace, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return r.freeSpace, fmt.Errorf("filling etcd with %d values of %d bytes raises no alarm; the last answer: %v", pieces, bytes, last)
}

func (r *run) freeSpace(ctx context.Context) error {
	var revision int64
	for _, step := range []func() error{
		func() error {
			deleted, err := r.direct.Delete(ctx, filling, clientv3.WithPrefix())
			if err == nil {
				revision = deleted.Header.Revision
			}
			return err
		},
		// The judge, which can't write a mark now, must have read what is compacted.
		func() error { return r.recordTo(ctx, revision) },
		func() error {
			_, err := r.direct.Compact(ctx, revision, clientv3.WithCompactPhysical())
			if errors.Is(err, rpctypes.ErrCompacted) {
				return nil // by an attempt that was not answered
			}
			return err
		},
		func() error {
			for _, m := range r.cluster.Members() {
				if _, err := r.direct.Defragment(ctx, m.Direct()); err != nil {
					return err
				}
			}
			return nil
		},
		func() error {
			_, err := r.direct.AlarmDisarm(ctx, &clientv3.AlarmMember{})
			return err
		},
	} {
		if err := repeated(ctx, step); err != nil {
			return err
		}
	}
	return nil
}

// repeated takes a step until it succeeds or ctx ends.
func repeated(ctx context.Context, step func() error) error {
	for {
		err := step()
		if err == nil || ctx.Err() != nil {
			return err
		}
		hold(ctx, retryPause)
	}
}

func (r *run) recordTo(ctx context.Context, rev int64) error {
	r.history.Lock()
	defer r.history.Unlock()
	return r.history.ExtendTo(ctx, r.direct, rev)
}
