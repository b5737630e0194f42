// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/kube-watchcache/watchcache/integration/internal/slowdisk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// within gives a context for one request.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func dialURL(t *testing.T, urls ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: urls, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// eventually repeats a request until it succeeds: a cluster that lost a member
// needs an election first.
func eventually(t *testing.T, request func(context.Context) error) {
	t.Helper()
	for ctx := within(t, patience); ; {
		once, cancel := context.WithTimeout(ctx, askPatience)
		err := request(once)
		cancel()
		if err == nil {
			return
		}
		require.NoError(t, ctx.Err(), err)
	}
}

// TestCluster holds each fault to what it says that it does.
func TestCluster(t *testing.T) {
	for _, mode := range []Mode{Process, Container} {
		t.Run(string(mode), func(t *testing.T) {
			if err := engineErr(t.Context()); mode == Container && err != nil {
				fmt.Printf("%s: skipped, no container engine answers: %v\n", t.Name(), err)
				t.Skip(err)
			}
			testCluster(t, mode)
		})
	}
}

func testCluster(t *testing.T, mode Mode) {
	c := StartClusterOf(t, ClusterConfig{Members: 3, Dir: t.TempDir(), Mode: mode, SlowDisk: true})
	require.Equal(t, mode, c.Mode())
	require.Len(t, c.Endpoints(), 3)
	all := dialURL(t, c.Endpoints()...)
	put := func(ctx context.Context) error {
		_, err := all.Put(ctx, "/key", "value")
		return err
	}
	eventually(t, put)
	read := func(m *Member, timeout time.Duration) error {
		_, err := dialURL(t, m.Direct()).Get(within(t, timeout), "/key")
		return err
	}

	leader, err := c.Leader(t.Context())
	require.NoError(t, err)
	follower := c.Member(1)
	if follower == leader {
		follower = c.Member(2)
	}

	t.Run("a member is paused", func(t *testing.T) {
		require.NoError(t, follower.Pause(t.Context()))
		require.Error(t, read(follower, time.Second))
		require.NoError(t, read(leader, patience))
		require.NoError(t, follower.Resume(t.Context()))
		require.NoError(t, read(follower, patience))
	})
	t.Run("a member is cut off from the others", func(t *testing.T) {
		require.NoError(t, follower.Isolate(within(t, patience)))
		require.Error(t, read(follower, 3*time.Second), "it answers a consistent read")
		_, err := dialURL(t, follower.Direct()).Get(within(t, patience), "/key", clientv3.WithSerializable())
		require.NoError(t, err, "its clients are cut off too")
		require.NoError(t, read(leader, patience))
		require.NoError(t, follower.Join(within(t, patience)))
		eventually(t, func(ctx context.Context) error {
			_, err := dialURL(t, follower.Direct()).Get(ctx, "/key")
			return err
		})
	})
	t.Run("the leader is cut off from the others", func(t *testing.T) {
		require.NoError(t, follower.Lead(within(t, patience)))
		now, err := c.Leader(t.Context())
		require.NoError(t, err)
		require.Equal(t, follower, now)
		require.NoError(t, follower.Isolate(within(t, patience)))
		eventually(t, func(ctx context.Context) error {
			_, err := dialURL(t, leader.Direct()).Put(ctx, "/key", "value")
			return err
		})
		require.Error(t, read(follower, 3*time.Second), "it answers a consistent read")
		require.NoError(t, follower.Join(within(t, patience)))
	})
	t.Run("two members are killed", func(t *testing.T) {
		require.NoError(t, c.Member(0).Kill(within(t, patience)))
		require.NoError(t, c.Member(1).Kill(within(t, patience)))
		require.Error(t, read(c.Member(2), time.Second))
		require.NoError(t, c.StartAll(within(t, patience)))
		eventually(t, put)
	})
	t.Run("a member is cut off from everybody", func(t *testing.T) {
		m := c.Member(0)
		require.NoError(t, m.Disconnect(within(t, patience)))
		_, err := dialURL(t, c.Endpoints()[0]).Get(within(t, time.Second), "/key", clientv3.WithSerializable())
		require.Error(t, err, "its clients get in")
		require.NoError(t, m.Connect(within(t, patience)))
		eventually(t, func(ctx context.Context) error {
			_, err := dialURL(t, c.Endpoints()[0]).Get(ctx, "/key")
			return err
		})
		eventually(t, put)
	})
	t.Run("a paused member is killed", func(t *testing.T) {
		require.NoError(t, c.Member(0).Pause(within(t, patience)))
		require.NoError(t, c.Member(0).Kill(within(t, patience)))
		require.NoError(t, c.StartAll(within(t, patience)))
		eventually(t, put)
	})
	t.Run("disks are slow", func(t *testing.T) {
		for _, m := range c.Members() {
			err := m.SlowDisk(t.Context(), time.Hour)
			if errors.Is(err, slowdisk.ErrUnavailable) {
				fmt.Printf("%s: skipped: %v\n", t.Name(), err)
				t.Skip(err)
			}
			require.NoError(t, err)
		}
		_, err := all.Put(within(t, 3*time.Second), "/key", "value")
		require.Error(t, err, "a write that is on no disk is acknowledged")
		waited := int64(0)
		for _, m := range c.Members() {
			n, err := m.SlowSyncs(t.Context())
			require.NoError(t, err)
			waited += n
		}
		require.Positive(t, waited)
		for _, m := range c.Members() {
			require.NoError(t, m.SlowDisk(t.Context(), 0))
		}
		eventually(t, put)
	})
	t.Run("watches are counted", func(t *testing.T) {
		before, err := c.Member(0).Watchers(t.Context())
		require.NoError(t, err)
		watch := dialURL(t, c.Member(0).Direct()).Watch(t.Context(), "/key", clientv3.WithCreatedNotify())
		<-watch
		after, err := c.Member(0).Watchers(t.Context())
		require.NoError(t, err)
		require.Equal(t, before+1, after)
	})
	t.Run("a client's connection is silent", func(t *testing.T) {
		m := c.Member(0)
		m.Clients().Silence()
		_, err := dialURL(t, c.Endpoints()[0]).Get(within(t, time.Second), "/key")
		require.Error(t, err)
		require.NoError(t, read(m, patience))
		m.Clients().Heal()
		_, err = dialURL(t, c.Endpoints()[0]).Get(within(t, patience), "/key")
		require.NoError(t, err)
	})
}
