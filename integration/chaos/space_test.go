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
	for _, step := range []struct {
		name string
		take func(context.Context) error
	}{
		{"delete", func(ctx context.Context) error {
			deleted, err := r.direct.Delete(ctx, filling, clientv3.WithPrefix())
			if err == nil {
				revision = deleted.Header.Revision
			}
			return err
		}},
		// The judge, which can't write a mark now, must have read what is compacted.
		{"read the history", func(ctx context.Context) error { return r.recordTo(ctx, revision) }},
		{"compact", func(ctx context.Context) error {
			return r.compactTo(ctx, revision, clientv3.WithCompactPhysical())
		}},
		{"defragment", r.defragment},
		{"disarm", func(ctx context.Context) error {
			_, err := r.direct.AlarmDisarm(ctx, &clientv3.AlarmMember{})
			return err
		}},
	} {
		if err := repeated(ctx, step.take); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// compactTo succeeds if an attempt that was not answered has compacted already.
func (r *run) compactTo(ctx context.Context, rev int64, options ...clientv3.CompactOption) error {
	_, err := r.direct.Compact(ctx, rev, options...)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	return err
}

// defragment defragments the members, one after the other.
func (r *run) defragment(ctx context.Context) error {
	for _, m := range r.cluster.Members() {
		if _, err := r.direct.Defragment(ctx, m.Direct()); err != nil {
			return err
		}
	}
	return nil
}

// attempt bounds one attempt of what is repeated: long enough to read all that was
// filled in on a busy machine.
const attempt = patience

// repeated takes a step until it succeeds or ctx ends; the error has that of the
// attempt before the last.
func repeated(ctx context.Context, step func(context.Context) error) error {
	var before error
	for {
		bounded, cancel := context.WithTimeout(ctx, attempt)
		err := step(bounded)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return errors.Join(err, before)
		}
		before = err
		hold(ctx, retryPause)
	}
}

func (r *run) recordTo(ctx context.Context, rev int64) error {
	r.history.Lock()
	defer r.history.Unlock()
	return r.history.ExtendTo(ctx, r.direct, rev)
}
