// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// These are races in kine v0.16.4, each tried until it is lost. A kine without
// one fails its test: then docs/backends.md and noProgress are out of date.

const notLost = "the race was not lost in %d rounds: has kine changed?"

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
	require.NoError(t, writes.Wait(), notLost, round)
	return slices.Max(revisions[:])
}

// told is the revision that kine tells with a key that is not there.
func (f *fixture) told(t *testing.T) int64 {
	t.Helper()
	answer, err := f.client().Get(f.ctx, "/none")
	require.NoError(t, err)
	return answer.Header.Revision
}

// TestVersionFallsBehind: writes at the same time, and the revision that kine
// tells to who asks afterwards is not that of the last one. kine keeps it in
// memory, and any of them may be the last to set it. The data that kine reads
// from the database is right.
func TestVersionFallsBehind(t *testing.T) {
	t.Parallel()
	f := newFixture(t, startKine(t, silent), noProgress)
	for round := 0; ; round++ {
		last := f.atOnce(t, round)
		told := f.told(t)
		counted, err := f.client().Get(f.ctx, "/none", clientv3.WithRange("/none\x00"), clientv3.WithCountOnly())
		require.NoError(t, err)
		require.GreaterOrEqual(t, counted.Header.Revision, last, "from the database")
		if told < last {
			t.Logf("round %d: %d after a write at %d", round, told, last)
			return
		}
	}
}

// TestReadsWhileTheVersionIsBehind: kine goes on telling the earlier revision
// until the next write. A cache that does not ask for it goes on serving.
func TestReadsWhileTheVersionIsBehind(t *testing.T) {
	t.Parallel()
	f := newFixture(t, startKine(t, silent), noProgress)
	pod := f.create(t, f.stored, "ns/a")
	for round := 0; ; round++ {
		last := f.atOnce(t, round)
		err := wait.PollUntilContextTimeout(f.ctx, 5*time.Millisecond, 100*time.Millisecond, true, func(context.Context) (bool, error) {
			return f.told(t) >= last, nil
		})
		if err != nil {
			t.Logf("round %d: %d after a write at %d", round, f.told(t), last)
			break
		}
	}
	for range 10 {
		require.Equal(t, []string{"ns/a"}, names(f.list(t, f.cacher, "", from(""))))
		got := &example.Pod{}
		require.NoError(t, f.cacher.Get(f.ctx, f.prefix+"ns/a", storage.GetOptions{}, got))
		require.Equal(t, pod, got)
	}
}

// TestEmptyListIsTooNew: a list that finds nothing has the revision of a moment
// later, when there is something. A client that watches from there misses it.
func TestEmptyListIsTooNew(t *testing.T) {
	t.Parallel()
	f := newFixture(t, startKine(t, silent), noProgress)
	for round := 0; ; round++ {
		prefix := fmt.Sprintf("/race/%d/", round)
		at := make(chan int64, 1)
		go func() {
			rv, err := create(f.ctx, f.client(), prefix+"a")
			assert.NoError(t, err)
			at <- rv
		}()
		var empty int64
		for {
			list, err := f.client().Get(f.ctx, prefix, clientv3.WithPrefix())
			require.NoError(t, err, notLost, round)
			if len(list.Kvs) > 0 {
				break
			}
			empty = list.Header.Revision
		}
		if rv := <-at; empty >= rv {
			t.Logf("round %d: nothing at %d, where a write at %d is", round, empty, rv)
			return
		}
	}
}

// TestProgressOvertakesEvents: kine reports to a watch that it is up to date with
// a revision, and sends the event of that revision afterwards. kine does not
// look at what is on its way to the watch.
func TestProgressOvertakesEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t, startKine(t, "-watch-progress-notify-interval=5ms"), noProgress)
	ctx, cancel := context.WithCancel(f.ctx)
	overtaken := make(chan string, 1)
	var watches sync.WaitGroup
	for i := range 20 {
		// Watches on one stream also get each other's revisions.
		own := metadata.NewOutgoingContext(ctx, metadata.Pairs("stream", strconv.Itoa(i)))
		w := f.client().Watch(own, "/race/", clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithProgressNotify())
		watches.Go(func() {
			if how := waitForOvertaking(w); how != "" {
				select {
				case overtaken <- how:
				default:
				}
			}
		})
	}
	defer watches.Wait()
	defer cancel()
	for i := 0; ; i++ {
		_, err := create(f.ctx, f.client(), fmt.Sprintf("/race/%d", i))
		require.NoError(t, err, notLost, i)
		select {
		case how := <-overtaken:
			t.Logf("after %d writes: %s", i+1, how)
			return
		default:
		}
	}
}

// waitForOvertaking reads until an event comes after progress to its revision,
// or the watch ends. The watch's first events do not count.
func waitForOvertaking(w clientv3.WatchChan) string {
	var progress int64
	begun := false
	for answer := range w {
		if answer.IsProgressNotify() {
			progress = answer.Header.Revision
		}
		for _, e := range answer.Events {
			if begun && e.Kv.ModRevision <= progress {
				return fmt.Sprintf("%s at %d came after progress to %d", e.Kv.Key, e.Kv.ModRevision, progress)
			}
			begun = true
		}
	}
	return ""
}
