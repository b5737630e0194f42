// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/kube-watchcache/watchcache/bench/boundary/form"
)

// writers is how many writes are under way at once.
const writers = 16

// fill writes n devices, each at a revision of its own, and has etcd forget how they
// came.
func fill(ctx context.Context, client *clientv3.Client, prefix string, n int) error {
	group, writing := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := 0; i < n && writing.Err() == nil; i++ {
		group.Go(func() error {
			value, err := device(i, 0)
			if err != nil {
				return err
			}
			_, err = client.Put(writing, key(prefix, i), string(value))
			return err
		})
	}
	if err := errors.Join(group.Wait(), ctx.Err()); err != nil {
		return fmt.Errorf("writing %d devices: %w", n, err)
	}
	return forget(ctx, client)
}

// forget compacts what etcd has, as API servers do every five minutes: devices were
// mostly written long before a server starts, and a cache of ours that starts goes back
// to what etcd has of its history.
func forget(ctx context.Context, client *clientv3.Client) error {
	latest, err := client.Get(ctx, "/", clientv3.WithCountOnly())
	if err == nil {
		_, err = client.Compact(ctx, latest.Header.Revision)
	}
	// Nobody may have written anything since the last time.
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compacting the devices' history: %w", err)
	}
	return nil
}

// Change writes the i-th device once more, with another status, and no other
// size.
func (s *Stage) Change(ctx context.Context, f form.Form, i, changes int) error {
	value, err := device(i%s.config.Objects, changes)
	if err == nil {
		_, err = s.client.Put(ctx, key(s.prefix(f), i%s.config.Objects), string(value))
	}
	if err != nil {
		return fmt.Errorf("changing a device: %w", err)
	}
	return nil
}

// Compact has etcd forget all revisions but the latest, as API servers have it forget
// what is older than five minutes.
func (s *Stage) Compact(ctx context.Context) error { return forget(ctx, s.client) }

// Changes are written at a fixed rate, from Write until End.
type Changes struct {
	written atomic.Int64
	cancel  context.CancelFunc
	done    chan struct{}
	err     error
}

// changed is the device of the n-th change of so many: any, but the same in every
// run. Devices in turn, or at equal distances, would fall into fewer or more chunks
// of a list than the objects that change in a cluster.
func changed(n, objects int) int {
	return rand.New(rand.NewPCG(uint64(n), 2)).IntN(objects)
}

// Write changes so many devices a second, one after the other, until End or the
// end of ctx. The goroutines that write end with it, and End awaits them.
func (s *Stage) Write(ctx context.Context, f form.Form, perSecond int) *Changes {
	ctx, cancel := context.WithCancel(ctx)
	c := &Changes{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = c.write(ctx, perSecond, func(ctx context.Context, n int) error { return s.Change(ctx, f, changed(n, s.config.Objects), n) })
	}()
	return c
}

func (c *Changes) write(ctx context.Context, perSecond int, change func(ctx context.Context, n int) error) error {
	const tick = 10 * time.Millisecond
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var group errgroup.Group
	group.SetLimit(writers)
	begun, due := time.Now(), 0
	var failed atomic.Pointer[error]
	for failed.Load() == nil {
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-ticker.C:
		}
		for until := int(time.Since(begun).Seconds() * float64(perSecond)); due < until && ctx.Err() == nil; {
			due++
			n := due
			group.Go(func() error {
				err := change(ctx, n)
				switch {
				case err == nil:
					c.written.Add(1)
				case ctx.Err() == nil:
					failed.Store(&err)
				}
				return nil
			})
		}
	}
	return errors.Join(group.Wait(), *failed.Load())
}

// Written is how many changes etcd has confirmed.
func (c *Changes) Written() int64 { return c.written.Load() }

// End ends the writing, and returns when nothing is under way any more.
func (c *Changes) End() error {
	c.cancel()
	<-c.done
	return c.err
}
