// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

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
	seen := map[string]bool{}
	for line := range strings.Lines(log) {
		if strings.Contains(line, text) && !seen[line] {
			seen[line] = true
			lines = append(lines, line)
		}
	}
	return lines
}

// An outage of storage is two lines in the log, however long it lasts and whatever
// is asked meanwhile: one when storage is lost, one when it is back.
func TestStorageLostAndBack(t *testing.T) {
	for name, breaks := range map[string]bool{"watches break": true, "watches are silent": false} {
		t.Run(name, func(t *testing.T) {
			var c *cacher.Cacher
			text := logged(t, func() {
				inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, cache *cacher.Cacher) {
					c = cache
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
					back()
					elapse(8 * time.Second)
					lost = c.Status().Lost
					assert.Nil(t, lost, "the storage is back, the status says %+v", lost)
					expectList(t, c, "/pods/", "", "a/one@2")
					elapse(10 * time.Minute)
				})
			})
			lost, back := linesAbout(text, "The storage does not answer"), linesAbout(text, "The storage answers again")
			require.Len(t, lost, 1, "the lines that say that storage is lost, of\n%s", text)
			require.Len(t, back, 1, "the lines that say that storage is back, of\n%s", text)
			for _, want := range []string{`resource="pods"`, `err="`, "silence=", "resourceVersion=2", "remedy=", "consistent reads fail"} {
				assert.Contains(t, lost[0], want)
			}
			assert.Contains(t, back[0], `resource="pods"`)
			assert.Contains(t, back[0], "silence=")
		})
	}
}

// unreachable is a storage that knows why it does not answer.
type unreachable struct{ *memstore.Store }

func (unreachable) CheckConnection(context.Context) error {
	return status.Error(codes.Unavailable, "\"https://admin:pass@127.0.0.1:2379\": x509: certificate has expired")
}

// REGRESSIONS 145: the reason for which storage does not answer is in the line and in the
// status, without credentials.
func TestReasonOfALostStorage(t *testing.T) {
	text := logged(t, func() {
		inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			takeAway(store, false)
			for range 19 {
				goList(t.Context(), c, "")
				elapse(5 * time.Second)
			}
			lost := c.Status().Lost
			require.NotNil(t, lost)
			assert.Contains(t, lost.Message, "certificate has expired")
			assert.NotContains(t, lost.Message, "pass")
		}, func(config *cacher.Config) { config.Storage = unreachable{config.Storage.(*memstore.Store)} })
	})
	lost := linesAbout(text, "The storage does not answer")
	require.Len(t, lost, 1, text)
	assert.Contains(t, lost[0], "certificate has expired")
	assert.NotContains(t, text, "admin:pass")
}

// A storage that nobody asks anything, and that has nothing to tell, is not lost;
// neither is one whose watch breaks, nor one that answered later than a client
// was willing to wait.
func TestQuietStorageIsNotLost(t *testing.T) {
	text := logged(t, func() {
		inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
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
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
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
