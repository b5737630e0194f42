// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/kube-watchcache/watchcache/integration/internal/judge"
	"github.com/kube-watchcache/watchcache/integration/internal/usage"
)

// moreStreams is how many more streams of watches of etcd there may be after the load
// than before it: one for each server.
const moreStreams = 2

// used is what a run must not leave behind.
type used struct {
	streams int // of watches, in all members of etcd
	servers []usage.Server
}

// measure asks members and servers.
func (r *run) measure(ctx context.Context) (u used, err error) {
	for _, m := range r.cluster.Members() {
		n, err := m.WatchStreams(ctx)
		if err != nil {
			return u, err
		}
		u.streams += n
	}
	for _, s := range r.servers {
		client := s.Connect(r.t)
		one, err := usage.Measure(ctx, client, s.Config.Host)
		if err != nil {
			return u, err
		}
		utilnet.CloseIdleConnectionsFor(client.Transport)
		u.servers = append(u.servers, one)
	}
	return u, nil
}

// exceeds tells what there is more of than there may be.
func (u used) exceeds(before used) error {
	if u.streams > before.streams+moreStreams {
		return fmt.Errorf("etcd serves %d streams of watches, and %d before the load", u.streams, before.streams)
	}
	for i := range u.servers {
		if err := u.servers[i].Exceeds(before.servers[i]); err != nil {
			return fmt.Errorf("server %c: %w", 'A'+i, err)
		}
	}
	return nil
}

// String is one line.
func (u used) String() string {
	out := fmt.Sprintf("%d streams of watches in etcd", u.streams)
	for i, s := range u.servers {
		out += fmt.Sprintf("; server %c: %v", 'A'+i, s)
	}
	return out
}

// baseline is the usage before the load, once each server watches etcd, which begins
// after it is ready.
func (r *run) baseline(ctx context.Context) (u used) {
	r.t.Helper()
	r.await(ctx, "the usage before the load can't be measured", func() (err error) {
		if u, err = r.measure(ctx); err == nil && u.streams < moreStreams {
			err = fmt.Errorf("etcd serves %d streams of watches: not all servers watch yet", u.streams)
		}
		return err
	})
	return u
}

// leaks waits until the usage is what it was before, and tells what is more.
func (r *run) leaks(ctx context.Context, before used) (after used, found judge.Violations) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		now, err := r.measure(ctx)
		if err == nil {
			after, err = now, now.exceeds(before)
		}
		if err == nil {
			return after, nil
		}
		hold(ctx, 5*retryPause)
		if ctx.Err() != nil {
			found.Add(judge.Released, "%v after the load: %v; last %v", patience, err, after)
			return after, found
		}
	}
}
