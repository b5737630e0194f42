// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// worker changes objects of a resource. The worker goes on after an error; any
// write may have happened although it has failed.
type worker struct {
	storage storage.Interface
	prefix  string
	name    string
	// done and failed count the writes.
	done, failed *atomic.Int64
	// kept are the names of objects whose creation was acknowledged, and that
	// nobody deletes.
	kept []string
}

func (w *worker) count(err error) (done bool) {
	if err != nil {
		w.failed.Add(1)
		return false
	}
	w.done.Add(1)
	return true
}

// object is the i-th object's life: of three one stays as it was created, one is
// updated and one is deleted.
func (w *worker) object(ctx context.Context, i int) {
	name := fmt.Sprintf("ns/%s-%d", w.name, i)
	key := w.prefix + name
	created := w.count(w.storage.Create(ctx, key, poddata.Pod(name), &example.Pod{}, 0))
	if created && i%3 != 2 {
		w.kept = append(w.kept, name)
	}
	switch i % 3 {
	case 1:
		w.count(w.storage.GuaranteedUpdate(ctx, key, &example.Pod{}, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			obj.(*example.Pod).Labels = map[string]string{"updated": "yes"}
			return obj, nil
		}), nil))
	case 2:
		w.count(w.storage.Delete(ctx, key, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
	}
}

// TestRestart: kine is killed in the middle of writes, twice, and started again
// on the same file and socket. The caches resume, nobody who watches them
// misses anything, and they end up with what is stored: all that was
// acknowledged.
func TestRestart(t *testing.T) { onEach(t, testRestart) }

func testRestart(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db), noProgress)
	caches := []*cached{f.cached, f.cache(t, f.ctx, others, noProgress)}
	var done, failed atomic.Int64
	var followed []*followers
	var writers []*worker
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	var workers sync.WaitGroup
	for _, c := range caches {
		first := c.create(t, c.stored, "ns/first")
		c.reached(t, first.ResourceVersion)
		followed = append(followed, c.follow(t, 10, first.ResourceVersion, "ns/last"))
		w := &worker{storage: c.cacher, prefix: c.prefix, name: "pod", done: &done, failed: &failed}
		writers = append(writers, w)
		workers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				// etcd's client waits for a server for as long as it may.
				bounded, done := context.WithTimeout(ctx, 500*time.Millisecond)
				w.object(bounded, i)
				done()
			}
		})
	}
	more := func(of *atomic.Int64, n int64, what string) {
		t.Helper()
		enough := of.Load() + n
		eventually(t, func() bool { return of.Load() >= enough }, what)
	}
	for range 2 {
		more(&done, 200, "no writes")
		f.kine.kill()
		more(&failed, 2, "writes without kine")
		f.kine.start(t)
	}
	more(&done, 200, "no writes after a restart")
	cancel()
	workers.Wait()
	for i, c := range caches {
		c.create(t, c.stored, "ns/last")
		require.Greater(t, followed[i].compare(t), 100)
		require.Subset(t, names(c.sameAsStored(t)), writers[i].kept)
		require.EqualValues(t, 1, f.metric(t, "relists_total", c.Resource))
	}
}
