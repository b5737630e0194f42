// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/metadata"
)

// create creates a key as k8s.io/apiserver does, and returns its revision.
func create(ctx context.Context, client *clientv3.Client, key string) (int64, error) {
	done, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "value")).Commit()
	if err != nil {
		return 0, err
	}
	if !done.Succeeded {
		return 0, fmt.Errorf("%s exists", key)
	}
	return done.Header.Revision, nil
}

// atOnce creates four keys at the same time and returns the last one's revision.
func (f *fixture) atOnce(t *testing.T, round int) int64 {
	t.Helper()
	var writes errgroup.Group
	var revisions [4]int64
	for w := range revisions {
		writes.Go(func() (err error) {
			revisions[w], err = create(f.ctx, f.client(), fmt.Sprintf("/race/%d-%d", round, w))
			return err
		})
	}
	require.NoError(t, writes.Wait())
	return slices.Max(revisions[:])
}

// told is the revision that kine tells with a key that is not there.
func (f *fixture) told(t *testing.T) int64 {
	t.Helper()
	answer, err := f.client().Get(f.ctx, "/none")
	require.NoError(t, err)
	return answer.Header.Revision
}

// TestVersionAfterWrites: the revision that kine tells after writes at the same time is
// not below any of theirs.
func TestVersionAfterWrites(t *testing.T) { onEach(t, testVersionAfterWrites) }

func testVersionAfterWrites(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db), noProgress)
	for round := range 100 {
		last := f.atOnce(t, round)
		require.GreaterOrEqual(t, f.told(t), last)
	}
}

// TestRevisionOfARecreatedKey: while others write, the answer to who creates a key that
// was deleted can have the revision of another write.
func TestRevisionOfARecreatedKey(t *testing.T) { onEach(t, testRevisionOfARecreatedKey) }

func testRevisionOfARecreatedKey(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db), noProgress)
	wrong := make(chan string, 4)
	var writers sync.WaitGroup
	ctx, cancel := context.WithCancel(f.ctx)
	defer writers.Wait()
	defer cancel()
	for w := range 4 {
		writers.Go(func() {
			if how, err := recreate(ctx, f.client(), fmt.Sprintf("/race/%d", w)); err == nil {
				wrong <- how
			}
		})
	}
	select {
	case how := <-wrong:
		t.Log(how)
	case <-f.ctx.Done():
		require.FailNow(t, "the race was not lost: has kine changed?")
	}
}

// recreate creates and deletes a key until the answer to its creation is wrong.
func recreate(ctx context.Context, client *clientv3.Client, key string) (wrong string, err error) {
	for {
		told, err := create(ctx, client, key)
		if err != nil {
			return "", err
		}
		got, err := client.Get(ctx, key)
		if err != nil {
			return "", err
		}
		if at := got.Kvs[0].ModRevision; at != told {
			return fmt.Sprintf("%s was created at %d, the answer said %d", key, at, told), nil
		}
		if _, err = client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", told)).
			Then(clientv3.OpDelete(key)).Else(clientv3.OpGet(key)).Commit(); err != nil {
			return "", err
		}
	}
}

// TestListsLackEarlierWrites: on PostgreSQL, a list can have the revision of a write and
// lack an earlier one, which got its revision first and is committed last. A client that
// watches from there misses that write. SQLite has one writer at a time.
func TestListsLackEarlierWrites(t *testing.T) { onEach(t, testListsLackEarlierWrites) }

func testListsLackEarlierWrites(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db), noProgress)
	for round := 0; ; round++ {
		lacking := f.listWhileManyWrite(t, fmt.Sprintf("/race/%d/", round))
		if db == database(file{}) {
			require.Empty(t, lacking)
			if round == 10 {
				return
			}
		} else if len(lacking) > 0 {
			t.Logf("round %d: %s", round, lacking[0])
			return
		}
	}
}

// listWhileManyWrite creates keys under a prefix and lists them meanwhile. It describes
// the lists that lack keys.
func (f *fixture) listWhileManyWrite(t *testing.T, prefix string) (lacking []string) {
	t.Helper()
	var writes errgroup.Group
	for w := range 8 {
		writes.Go(func() error {
			for i := range 20 {
				if _, err := create(f.ctx, f.client(), fmt.Sprintf("%s%d-%d", prefix, w, i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- writes.Wait() }()
	var lists []*clientv3.GetResponse
	for writing := true; writing; {
		select {
		case err := <-ended:
			require.NoError(t, err)
			writing = false
		default:
		}
		list, err := f.client().Get(f.ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		require.NoError(t, err)
		lists = append(lists, list)
	}
	all := lists[len(lists)-1].Kvs
	for _, list := range lists {
		want := 0
		for _, kv := range all {
			if kv.ModRevision <= list.Header.Revision {
				want++
			}
		}
		if len(list.Kvs) != want {
			lacking = append(lacking, fmt.Sprintf("%d keys at %d, where %d are", len(list.Kvs), list.Header.Revision, want))
		}
	}
	return lacking
}

// TestProgressFollowsEvents: progress at a revision, requested or not, comes after all
// events up to it, also while others write.
func TestProgressFollowsEvents(t *testing.T) { onEach(t, testProgressFollowsEvents) }

func testProgressFollowsEvents(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db, func(c *config) { c.notify = 5 * time.Millisecond }), noProgress)
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	// Progress that is requested goes to all watches of a stream.
	ctx = metadata.NewOutgoingContext(ctx, metadata.Pairs("stream", "own"))
	var watches errgroup.Group
	var reports atomic.Int64
	for range 5 {
		w := f.client().Watch(clientv3.WithRequireLeader(ctx), "/race/", clientv3.WithPrefix(), clientv3.WithCreatedNotify(), clientv3.WithProgressNotify())
		require.True(t, (<-w).Created)
		watches.Go(func() error { return readToTheEnd(w, &reports) })
	}
	for round := 0; round < 50 || reports.Load() < 100; round++ {
		f.atOnce(t, round)
		require.NoError(t, f.client().RequestProgress(clientv3.WithRequireLeader(ctx)))
	}
	_, err := create(f.ctx, f.client(), "/race/end")
	require.NoError(t, err)
	require.NoError(t, watches.Wait())
}

// readToTheEnd reads up to the event of /race/end and fails if an event comes after
// progress to its revision.
func readToTheEnd(w clientv3.WatchChan, reports *atomic.Int64) error {
	var progress int64
	for answer := range w {
		if answer.IsProgressNotify() {
			reports.Add(1)
			progress = max(progress, answer.Header.Revision)
		}
		for _, e := range answer.Events {
			if e.Kv.ModRevision <= progress {
				return fmt.Errorf("%s at %d came after progress to %d", e.Kv.Key, e.Kv.ModRevision, progress)
			}
			if string(e.Kv.Key) == "/race/end" {
				return nil
			}
		}
	}
	return errEnded
}

// TestProgressFallsBehind: after writes at the same time, kine goes on answering requests
// for progress with the revision of one that was not the last, until the next write.
func TestProgressFallsBehind(t *testing.T) { onEach(t, testProgressFallsBehind) }

func testProgressFallsBehind(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db), noProgress)
	w := f.client().Watch(f.ctx, "/none", clientv3.WithCreatedNotify(), clientv3.WithProgressNotify())
	require.True(t, (<-w).Created)
	for round := 0; ; round++ {
		last, told := f.atOnce(t, round), int64(0)
		// The first answers may be from before the last write, and there is none
		// while the watch is behind.
		for answers := 0; answers < 20 && told < last; {
			require.NoError(t, f.client().RequestProgress(f.ctx))
			select {
			case answer := <-w:
				told, answers = max(told, answer.Header.Revision), answers+1
			case <-time.After(10 * time.Millisecond):
			}
		}
		if told < last {
			t.Logf("round %d: progress to %d after a write at %d", round, told, last)
			return
		}
	}
}
