// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A waiting read has no goroutine but its caller's, and holds up nobody:
// events are applied and delivered, and reads of what is there are served.
// (Regression 35.)
func TestWaitingReadsHoldUpNobody(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "2")
		expectReceived(t, w)
		const readers = 500
		before := runtime.NumGoroutine()
		ctx, cancel := context.WithCancel(t.Context())
		var reads []*reading
		for i := range readers {
			reads = append(reads, goList(ctx, c, fmt.Sprint(1000+i)))
		}
		synctest.Wait()
		assert.LessOrEqual(t, runtime.NumGoroutine()-before, readers+2, "the goroutines of %d readers", readers)
		put(store, poddata.Pod("a/two"))
		expectReceived(t, w, "ADDED a/two@3")
		expectList(t, c, "/pods/", "0", "a/one a/two@3")
		expectList(t, c, "/pods/", "", "a/one a/two@3")
		cancel()
		synctest.Wait()
		for _, r := range reads {
			require.False(t, r.under(), "a cancelled read goes on")
			require.Error(t, r.err, "a cancelled read got %q", r.got)
		}
	})
}

// Each version wakes those who wait for it or less, however they came and
// whoever has left.
func TestVersionsWakeTheirReaders(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		wanted := []int{7, 3, 5, 5, 9, 2, 8, 4, 6, 3}
		reads := map[int][]*reading{}
		for _, rv := range wanted {
			reads[rv] = append(reads[rv], goList(t.Context(), c, fmt.Sprint(rv)))
		}
		ctx, cancel := context.WithCancel(t.Context())
		for _, rv := range wanted {
			goList(ctx, c, fmt.Sprint(rv))
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		for rv := 2; rv <= 9; rv++ {
			put(store, poddata.Pod("a/one"))
			synctest.Wait()
			for at, group := range reads {
				for _, r := range group {
					assert.NotEqual(t, at <= rv, r.under(), "whether a read that waits for %d goes on at %d", at, rv)
				}
			}
		}
	})
}

// A read that has waited until its client's deadline is near says that it was in
// vain while somebody listens: an API server resets the stream of an answer that it
// gets after the deadline. Without a server, the read has all of its time.
func TestReadsThatWaitAnswerBeforeTheirDeadline(t *testing.T) {
	for _, timeout := range []time.Duration{20 * time.Millisecond, 400 * time.Millisecond, 2 * time.Second} {
		for name, read := range map[string]func(ctx context.Context, c *cacher.Cacher) *reading{
			"list not older than": func(ctx context.Context, c *cacher.Cacher) *reading { return goList(ctx, c, "1000") },
			"get not older than":  func(ctx context.Context, c *cacher.Cacher) *reading { return goGet(ctx, c, "/pods/a/one", "1000") },
			"consistent list":     func(ctx context.Context, c *cacher.Cacher) *reading { return goList(ctx, c, "") },
			"consistent get":      func(ctx context.Context, c *cacher.Cacher) *reading { return goGet(ctx, c, "/pods/a/one", "") },
		} {
			t.Run(fmt.Sprint(name, " ", timeout), func(t *testing.T) {
				inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					for _, kind := range []string{"version", "keyversions", "get"} {
						defer store.Gate(kind)()
					}
					ctx, cancel := context.WithTimeout(t.Context(), timeout)
					defer cancel()
					own := read(ctx, c)
					<-own.done
					assert.ErrorIs(t, own.err, context.DeadlineExceeded)
					ctx, cancel = context.WithTimeout(t.Context(), timeout)
					defer cancel()
					r := read(apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{}), c)
					<-r.done
					assert.NoError(t, ctx.Err(), "the deadline was over when the read failed with %q", r.err)
					var status apierrors.APIStatus
					require.ErrorAs(t, r.err, &status)
					assert.EqualValues(t, http.StatusGatewayTimeout, status.Status().Code, r.err)
					if strings.HasPrefix(name, "consistent") { // regression 149
						assert.ErrorContains(t, r.err, "the time that this request has is over")
					}
				})
			})
		}
	}
}
