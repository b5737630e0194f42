// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// takeAway makes the storage leave all requests unanswered, until back is called.
// Its watches break, or stay open and bring nothing.
func takeAway(store *memstore.Store, breaks bool) (back func()) {
	var open []func()
	for _, kind := range []string{"version", "keyversions", "get", "list", "watch", "progress"} {
		open = append(open, store.Gate(kind))
	}
	if breaks {
		store.BreakWatches(apierrors.NewServiceUnavailable("connection refused"))
	}
	return func() {
		for _, open := range open {
			open()
		}
	}
}

// linesAbout returns the different lines of a log that have the text: klog writes
// each once for each severity below its own.
func linesAbout(log, text string) (lines []string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, text) && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// unreachable is a storage that knows why it does not answer.
type unreachable struct{ *memstore.Store }

func (unreachable) CheckConnection(context.Context) error {
	return status.Error(codes.Unavailable, "\"https://admin:pass@127.0.0.1:2379\": x509: certificate has expired")
}

// An outage of storage is two lines in the log, however long it lasts and whatever
// is asked meanwhile: one when storage is lost, one when it is back. REGRESSIONS 145: the
// line and the status have the reason for which storage does not answer, without credentials.
func TestStorageLostAndBack(t *testing.T) {
	for name, breaks := range map[string]bool{"watches break": true, "watches are silent": false} {
		t.Run(name, func(t *testing.T) {
			text := logged(t, func() {
				inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					elapse(10 * time.Minute)
					back := takeAway(store, breaks)
					for range 19 {
						elapse(5 * time.Second)
						expectList(t, c, "/pods/", "0", "a/one@2")
						goList(t.Context(), c, "")
					}
					lost := c.Status().Lost
					require.NotNil(t, lost, "after 95 s the status does not say that storage is lost")
					assert.LessOrEqual(t, time.Since(lost.Time), 95*time.Second, "after 95 s, when storage was lost")
					assert.True(t, breaks || strings.Contains(lost.Message, "certificate has expired"), lost.Message)
					assert.NotContains(t, lost.Message, "pass")
					back()
					elapse(8 * time.Second)
					assert.Nil(t, c.Status().Lost, "the storage is back")
					expectList(t, c, "/pods/", "", "a/one@2")
					elapse(10 * time.Minute)
				}, func(config *cacher.Config) { config.Storage = unreachable{config.Storage.(*memstore.Store)} })
			})
			lost, back := linesAbout(text, "Storage does not answer"), linesAbout(text, "Storage answers again")
			require.Len(t, lost, 1, "the lines that say that storage is lost, of\n%s", text)
			require.Len(t, back, 1, "the lines that say that storage is back, of\n%s", text)
			for _, want := range []string{`resource="pods"`, "silence=", "resourceVersion=2", "remedy=", "consistent reads fail"} {
				assert.Contains(t, lost[0], want)
			}
			if !breaks { // or else it may be the error of the watch
				assert.Contains(t, lost[0], "certificate has expired")
			}
			assert.Contains(t, back[0], `resource="pods"`)
			assert.Contains(t, back[0], "silence=")
			assert.NotContains(t, text, "admin:pass")
		})
	}
}

// A storage that nobody asks anything, and that has nothing to tell, is not lost;
// neither is one whose watch breaks, nor one that answered later than a client
// was willing to wait.
func TestQuietStorageIsNotLost(t *testing.T) {
	text := logged(t, func() {
		inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			elapse(time.Hour)
			store.BreakWatches(apierrors.NewServiceUnavailable("connection refused"))
			elapse(time.Minute)
			answer := store.Gate("version")
			reads := goList(t.Context(), c, "")
			elapse(4 * time.Second)
			answer()
			<-reads.done
			elapse(time.Minute)
			assert.Nil(t, c.Status().Lost, "the status says that storage is lost")
		})
	})
	assert.Empty(t, linesAbout(text, "does not answer"))
}

// StorageTimeout is for how long a read waits for a storage that is away, beyond
// FreshnessTimeout at first and hardly at all once storage is lost. A read of
// which storage answers as slowly as that is not ended.
func TestStorageTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{0, 4 * time.Second} {
		want := timeout
		if want == 0 {
			want = cacher.DefaultStorageTimeout
		}
		t.Run(want.String(), func(t *testing.T) {
			inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				elapse(10 * time.Minute)
				back := takeAway(store, true)
				for outage, most := range []time.Duration{want + 2*time.Second, cacher.DefaultFreshnessTimeout + 2*time.Second} {
					began := time.Now()
					for _, r := range []*reading{goList(t.Context(), c, ""), goGet(t.Context(), c, "/pods/a/one", "")} {
						<-r.done
						waited := time.Since(began)
						assert.LessOrEqual(t, waited, most, "how long read %d has waited", outage)
						if outage == 0 {
							assert.GreaterOrEqual(t, waited, want, "how long read %d has waited", outage)
						}
						code, seconds := retryAfter(r.err)
						assert.True(t, apierrors.IsTimeout(r.err), "read %d: got %v", outage, r.err)
						assert.EqualValues(t, 504, code, "read %d: the status code", outage)
						assert.NotZero(t, seconds, "read %d: retry after", outage)
					}
				}
				back()
				elapse(10 * time.Second)

				list := store.Gate("list")
				store.HangWatches(memstore.Hang{Next: 1000})
				put(store, poddata.Pod("a/two"))
				slow := goList(t.Context(), c, "")
				elapse(time.Minute)
				list()
				<-slow.done
				assert.Equal(t, "a/one a/two@3", slow.got, "a slow read: %q, %v", slow.got, slow.err)
			}, func(c *cacher.Config) { c.StorageTimeout, c.ConsistencyCheckInterval = timeout, -1 })
		})
	}
}

// A read that only storage can answer ends as well if storage has fallen silent, with open
// watches, before anybody has asked it.
func TestReadsOfAStorageThatFallsSilent(t *testing.T) {
	inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		elapse(10 * time.Minute)
		defer takeAway(store, false)()
		r := goGet(t.Context(), c, "/pods/a/one", "")
		elapse(cacher.DefaultStorageTimeout + 10*time.Second)
		require.False(t, r.under(), "the read waits")
		assert.True(t, apierrors.IsTimeout(r.err), "got %v", r.err)
	}, func(c *cacher.Config) { c.ConsistentGetFromStorage, c.ConsistencyCheckInterval = true, -1 })
}

// dropping takes requests for progress, as etcd's grpc-proxy does, and answers none
// while drops is true.
type dropping struct {
	*memstore.Store
	drops atomic.Bool
}

func (d *dropping) RequestWatchProgress(ctx context.Context) error {
	if d.drops.Load() {
		return nil
	}
	return d.Store.RequestWatchProgress(ctx)
}

// REGRESSIONS 143: a storage that answers requests and never reports progress serves
// consistent reads itself. Its watch stays open, nobody lists again, and the log says so
// once, with the remedy. Once it reports, the cache serves them.
func TestStorageThatFallsSilent(t *testing.T) {
	for _, after := range []time.Duration{0, time.Minute} { // from the start on, or later
		t.Run(after.String(), func(t *testing.T) {
			text := logged(t, func() {
				store := &dropping{}
				inBubble(t, func() *memstore.Store { store.Store = newStore(poddata.Pod("a/one")); return store.Store }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
					elapse(after)
					w := watchPods(t, c, "/pods/", "2", withBookmarks)
					store.drops.Store(true)
					store.Touch()
					first := goList(t.Context(), c, "")
					elapse(4 * time.Second)
					require.False(t, first.under(), "the read that finds out has an answer")
					watches := store.Requests()["watch"]
					for range 300 {
						store.Touch()
						began := time.Now()
						list(t, c, "/pods/", "")
						require.NoError(t, c.Get(t.Context(), "/pods/a/one", storage.GetOptions{}, poddata.New()))
						require.Zero(t, time.Since(began), "storage answers at once")
						elapse(time.Second)
					}
					more := store.Requests()["watch"] - watches
					assert.LessOrEqual(t, more, 7, "%d tries in five minutes", more)
					put(store.Store, poddata.Pod("a/two"))
					synctest.Wait()
					assert.Contains(t, strings.Join(receivedAll(w), " "), "ADDED a/two@", "the watch has lived on")

					store.drops.Store(false)
					elapse(6 * time.Minute)
					lists := store.Requests()["list"]
					store.Touch()
					list(t, c, "/pods/", "")
					assert.Equal(t, lists, store.Requests()["list"], "the cache serves a consistent list")
				}, func(config *cacher.Config) { config.Storage, config.ConsistencyCheckInterval = store, -1 })
			})
			assert.Len(t, linesAbout(text, "does not report the progress of its watch"), 1, text)
			assert.Contains(t, text, "grpc-proxy")
			assert.Contains(t, text, "reports progress again")
		})
	}
}

// REGRESSIONS 150: a storage that is not etcd's own reports no progress unless it says so,
// whatever the process's etcd does. Each consistent read is one of storage.
func TestStorageThatSaysNothingOfProgress(t *testing.T) {
	checker := etcdfeature.DefaultFeatureSupportChecker
	etcdfeature.DefaultFeatureSupportChecker = progressSupported{checker}
	t.Cleanup(func() { etcdfeature.DefaultFeatureSupportChecker = checker })
	inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		before := store.Requests()
		for range 10 {
			store.Touch()
			began := time.Now()
			list(t, c, "/pods/", "")
			require.NoError(t, c.Get(t.Context(), "/pods/a/one", storage.GetOptions{}, poddata.New()))
			require.Zero(t, time.Since(began))
		}
		now := store.Requests()
		assert.Equal(t, 10, now["list"]-before["list"])
		assert.Equal(t, 10, now["get"]-before["get"])
		assert.Equal(t, before["watch"], now["watch"], "the watch is not opened again")
		assert.Equal(t, before["progress"], now["progress"])
	}, func(config *cacher.Config) { config.Storage = claimless{config.Storage} })
}

// claimless is a storage without any method beyond storage.Interface.
type claimless struct{ storage.Interface }

var noLeader = apierrors.NewInternalError(errors.New("etcdserver: no leader"))

// REGRESSIONS 56: to decode the state takes longer than the storage's compaction interval.
// The cache becomes ready all the same, follows the storage from there on, and has filled
// itself a few times at most.
func TestStateThatTakesLongerThanACompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &inPages{Store: newStore(poddata.Pod("a/one"))}
		store.listed = func(context.Context, int32) error { // takes its time, in which the resource changes and is compacted
			put(store.Store, poddata.Pod("a/changing"))
			rv := store.Touch()
			elapse(10 * time.Second) // open watches have received that
			store.Compact(rv)
			return nil
		}
		c := startFilled(t, store, nil)
		elapse(2 * time.Minute)
		require.True(t, c.Ready(), "the cache is not ready")
		before := store.pages.Load()
		assert.LessOrEqual(t, before, int32(2), "how often the cache was filled")
		w := watchPods(t, c, "/pods/", "")
		w.next()
		w.next()
		for range 10 {
			rv := put(store.Store, poddata.Pod("a/after"))
			assert.True(t, strings.HasSuffix(w.next(), fmt.Sprintf("a/after@%d", rv)))
			elapse(time.Minute)
		}
		assert.Equal(t, before, store.pages.Load(), "the cache was not filled again")
	})
}
