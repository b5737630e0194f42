// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
)

// reading is a read under way.
type reading struct {
	done chan struct{}
	err  error
	// got is the list, or the object, as a line.
	got string
}

func (r *reading) under() bool {
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// goList lists all pods in a goroutine; goGet gets one.
func goList(ctx context.Context, c storage.Interface, rv string) *reading {
	r := &reading{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		pods := &example.PodList{}
		if r.err = c.GetList(ctx, "/pods/", everything(rv), pods); r.err == nil {
			r.got = lineOf(pods)
		}
	}()
	return r
}

func goGet(ctx context.Context, c storage.Interface, key, rv string) *reading {
	r := &reading{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		pod := &example.Pod{}
		if r.err = c.Get(ctx, key, storage.GetOptions{ResourceVersion: rv}, pod); r.err == nil {
			r.got = fmt.Sprintf("%s/%s@%s", pod.Namespace, pod.Name, pod.ResourceVersion)
		}
	}()
	return r
}

// lineOf writes a list as "ns/name ns/name@rv of the list".
func lineOf(pods *example.PodList) string {
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	return strings.Join(names, " ") + "@" + pods.ResourceVersion
}

// expectRead wants a read to have ended with a line.
func expectRead(t *testing.T, r *reading, want string) {
	t.Helper()
	if assert.False(t, r.under(), "the read goes on, want %q", want) && assert.NoError(t, r.err, "want %q", want) {
		assert.Equal(t, want, r.got)
	}
}

// retryAfter returns the code and the seconds that a client is told to wait.
func retryAfter(err error) (code int32, seconds int) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0, 0
	}
	if details := status.Status().Details; details != nil {
		seconds = int(details.RetryAfterSeconds)
	}
	return status.Status().Code, seconds
}

// metered gives the cache metrics of its own, to be read by name and labels: a
// series that has not appeared yet is 0, and a name without labels stands for all
// series of the metric.
func metered(t testing.TB) (func(*cacher.Config), func(series string) float64) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	m, err := metrics.New(registry)
	require.NoError(t, err)
	value := func(series string) (sum float64) {
		t.Helper()
		name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		require.True(t, slices.ContainsFunc(metrics.List(), func(d metrics.Description) bool { return string(d.Name) == "watchcache_"+name }), "there is no metric %s", name)
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() != "watchcache_"+name {
				continue
			}
			for _, m := range family.GetMetric() {
				var found []string
				for _, label := range m.GetLabel() {
					if label.GetName() != "group" && label.GetName() != "resource" {
						found = append(found, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
					}
				}
				if slices.Sort(found); labels == "" || strings.Join(found, ",") == labels {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
		return sum
	}
	return func(c *cacher.Config) { c.Metrics = m }, value
}

// after waits for a read to end.
func after(r *reading) *reading { <-r.done; return r }

// Whether storage reports progress is asked again and again: it may be
// restarted with another version.
func TestProgressSupportChanges(t *testing.T) {
	var supported atomic.Bool
	supported.Store(true)
	store := newStore(poddata.Pod("a/one"))
	c := start(t, store, func(c *cacher.Config) { c.WatchProgress = supported.Load })
	for lists, reports := range []bool{true, false} {
		supported.Store(reports)
		expectList(t, c, "/pods/", "", "a/one@2")
		assert.Equal(t, 1+lists, store.Requests()["list"], "the list at the start, and the consistent LISTs that went to storage")
	}
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
				inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
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
						assert.ErrorContains(t, r.err, "before the deadline of this request")
					}
				})
			})
		}
	}
}
