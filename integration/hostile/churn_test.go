// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/debug"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/longform"
	"github.com/kube-watchcache/watchcache/integration/internal/usage"
)

// churnForm is the long form.
const churnForm = longform.Form("hostile")

const (
	churnPace    = 6 * time.Millisecond // 10,000 watches a minute
	churnShort   = 10 * time.Second
	churnDevices = 150
	churnWrites  = 50 * time.Millisecond
	// churnConnections are shared by the watches, but for some that have their own.
	churnConnections = 8
)

// options has, for each option of a request, the values that it is asked with, good
// and bad ones; "" leaves it out.
var options = []struct {
	name   string
	values []string
}{
	{"resourceVersion", []string{"", "0", "1", "%d", "%d", "4611686018427387904", "-1", "x"}},
	{"resourceVersionMatch", []string{"", "NotOlderThan", "NotOlderThan", "Exact", "Newest"}},
	{"sendInitialEvents", []string{"", "", "true", "true", "false", "x"}},
	{"allowWatchBookmarks", []string{"", "true", "true"}},
	{"timeoutSeconds", []string{"", "", "1", "3", "0", "-1"}},
	{"labelSelector", []string{"", "", "lane=1", "lane in (0,2),lane!=1", "!lane", "lane=1,,"}},
	{"fieldSelector", []string{"", "", "metadata.name=device-3", "spec.owner=owner", "metadata.namespace!=team-a", "no.such=field"}},
	{"limit", []string{"", "", "1", "-1"}},
	{"continue", []string{"", "", "", "x"}},
	{"pretty", []string{"", "", "1"}},
}

// ways are what clients do with their watches.
var ways = []string{"reads", "reads slowly", "never reads", "leaves at once", "leaves in the middle", "reads on a connection of its own", "cuts its connection"}

// churn is clients that open watches and drop them.
type churn struct {
	server  *apiserver.Process
	clients []*http.Client
	latest  atomic.Int64
	opened  [7]atomic.Int64 // by way
	mu      struct {
		sync.Mutex
		statuses map[int]int
		odd      []string
	}
}

// TestChurn opens and drops 10,000 watches a minute of every kind, with every
// option, while devices change; and then nothing may be left of them: no watcher, no
// goroutine, no memory.
func TestChurn(t *testing.T) {
	t.Parallel()
	run, asked := churnForm.Asked(t)
	if !asked {
		run = longform.Run{Duration: churnShort, Seed: 14}
	} else {
		fmt.Printf("again with: %s\n", run.Again)
	}
	_, err := testserver.Path()
	require.NoError(t, err)
	etcd, direct := startEtcd(t)
	f := &fixture{etcd: etcd, direct: direct}
	f.Process = testserver.Start(t, apiserver.Ours, etcd.Endpoints())
	for i := range churnDevices {
		require.NoError(t, f.put(t.Context(), []string{ours, theirs}[i%2], fmt.Sprint("device-", i), i))
	}
	c := &churn{server: f.Process}
	c.mu.statuses = map[int]int{}
	for range churnConnections {
		c.clients = append(c.clients, f.Connect(t))
	}
	judge := f.Connect(t)
	before, err := usage.Measure(t.Context(), judge, f.Config.Host)
	require.NoError(t, err)

	ctx, tasks := background(t)
	tasks.Go(func() { f.rewrite(ctx, t, c) })
	c.open(ctx, t, run, func() {
		now, err := usage.Measure(ctx, judge, f.Config.Host)
		if assert.NoError(t, err) {
			fmt.Printf("churn: %d watchers, %v\n", f.watchers(ctx, t, judge), now)
		}
	})
	tasks.stop()
	for _, client := range c.clients {
		utilnet.CloseIdleConnectionsFor(client.Transport)
	}
	require.True(t, f.Alive())
	var after usage.Server
	require.Eventually(t, func() bool {
		left := f.watchers(t.Context(), t, judge)
		if after, err = usage.Measure(t.Context(), judge, f.Config.Host); err == nil && left > 0 {
			err = fmt.Errorf("%d watchers are left", left)
		}
		if err == nil {
			err = after.Exceeds(before)
		}
		return err == nil
	}, patience, 500*time.Millisecond, "%v", &err)
	c.mu.Lock()
	defer c.mu.Unlock()
	total := int64(0)
	for way := range ways {
		total += c.opened[way].Load()
		require.Positive(t, c.opened[way].Load(), "no client %s", ways[way])
	}
	answered := 0
	for _, n := range c.mu.statuses {
		answered += n
	}
	fmt.Printf("churn: %d watches in %v, %d of them answered while their clients were there, by status %v; before: %v; after: %v\n",
		total, run.Duration, answered, c.mu.statuses, before, after)
	require.Empty(t, c.mu.odd)
	require.Greater(t, c.mu.statuses[http.StatusOK], answered/3, "too few watches are good ones")
	require.NotContains(t, f.Log(), "panic")
}

// rewrite changes devices until ctx ends.
func (f *fixture) rewrite(ctx context.Context, t *testing.T, c *churn) {
	tick := time.NewTicker(churnWrites)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		i := n % churnDevices
		key := stored([]string{ours, theirs}[i%2], fmt.Sprint("device-", i))
		if n%10 == 0 {
			if deleted, err := f.direct.Delete(ctx, key); err == nil {
				c.latest.Store(deleted.Header.Revision)
			}
		} else if err := f.put(ctx, []string{ours, theirs}[i%2], fmt.Sprint("device-", i), n); ctx.Err() == nil {
			assert.NoError(t, err)
		}
	}
}

// watchers is how many watches the server's cache has.
func (f *fixture) watchers(ctx context.Context, t *testing.T, client *http.Client) int {
	a, err := f.ask(ctx, client, debug.Path+"?format=json", "", false, "")
	var report debug.Report
	if !assert.NoError(t, err) || !assert.NoError(t, json.Unmarshal([]byte(a.body), &report)) || !assert.Len(t, report.Caches, 1) {
		return -1
	}
	return report.Caches[0].Watchers.Total
}

// open opens watches at an even pace, and returns when all of them have been
// dropped. look is called a few times.
func (c *churn) open(ctx context.Context, t *testing.T, run longform.Run, look func()) {
	ctx, cancel := context.WithTimeout(ctx, run.Duration)
	defer cancel()
	var watches sync.WaitGroup
	defer watches.Wait()
	pace, looks := time.NewTicker(churnPace), time.NewTicker(run.Duration/5)
	defer pace.Stop()
	defer looks.Stop()
	began := time.Now()
	for n := 0; ; {
		select {
		case <-pace.C:
			for ; n < int(time.Since(began)/churnPace); n++ { // a tick may come late
				number := n
				watches.Go(func() { c.watch(ctx, t, rand.New(rand.NewPCG(run.Seed, uint64(number))), number) })
			}
		case <-looks.C:
			watches.Go(look) // which takes a while on a busy machine
		case <-ctx.Done():
			return
		}
	}
}

// path draws a request: of four one with any options, which are mostly refused, one
// that begins with the state, and two with a few options.
func (c *churn) path(random *rand.Rand) string {
	query, kind := url.Values{"watch": {"true"}}, random.IntN(4)
	for _, o := range options {
		value := o.values[random.IntN(len(o.values))]
		if kind > 0 && random.IntN(8) > 0 {
			value = o.values[0]
		}
		if kind > 1 && o.name == "resourceVersion" {
			value = []string{"", "0", "%d"}[random.IntN(3)]
		}
		if value == "%d" {
			value = fmt.Sprint(max(1, c.latest.Load()-random.Int64N(100)))
		}
		if value != "" {
			query.Set(o.name, value)
		}
	}
	if kind == 1 {
		query.Set("sendInitialEvents", "true")
		query.Set("allowWatchBookmarks", "true")
		query.Set("resourceVersionMatch", "NotOlderThan")
	}
	return []string{everyNS, in(ours), in("none")}[random.IntN(3)] + "?" + query.Encode()
}

// watch opens one watch and drops it.
func (c *churn) watch(ctx context.Context, t *testing.T, random *rand.Rand, n int) {
	way := n % len(ways)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(500+random.IntN(3000))*time.Millisecond)
	defer cancel()
	client := c.clients[n%len(c.clients)]
	if way >= 5 {
		if n%3 != 0 {
			way = 0 // connections cost much
		} else {
			client = apiserver.Connect(t, c.server.Config)
			defer utilnet.CloseIdleConnectionsFor(client.Transport)
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server.Config.Host+c.path(random), nil)
	if !assert.NoError(t, err) {
		return
	}
	request.Header.Set("Accept", []string{asJSON, asTable, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "*/*", "application/yaml"}[min(5, random.IntN(16)/3)])
	if random.IntN(2) == 0 {
		request.Header.Set("Accept-Encoding", "gzip")
	}
	c.opened[way].Add(1)
	if way == 3 {
		time.AfterFunc(time.Duration(random.IntN(3))*time.Millisecond, cancel)
	}
	response, err := client.Do(request)
	if err != nil {
		return // the client has left, or the run is over
	}
	defer response.Body.Close()
	c.answered(response, request)
	switch way {
	case 1, 4:
		for piece := make([]byte, 512); ; {
			if _, err := response.Body.Read(piece); err != nil || way == 4 {
				return
			}
			wait(ctx, 50*time.Millisecond)
		}
	case 2:
		<-ctx.Done()
	case 6:
		utilnet.CloseIdleConnectionsFor(client.Transport)
	default:
		_, _ = io.Copy(io.Discard, response.Body)
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// answered notes an answer; one that a server gives for no fault of the client's is
// odd. To a malformed resourceVersion of a watch storage's error has no status, and the
// API server makes it a 500.
func (c *churn) answered(response *http.Response, request *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.statuses[response.StatusCode]++
	switch response.StatusCode {
	case http.StatusOK, http.StatusBadRequest, http.StatusNotAcceptable, http.StatusGone, http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusGatewayTimeout:
	default:
		_, err := storage.APIObjectVersioner{}.ParseResourceVersion(request.URL.Query().Get("resourceVersion"))
		if response.StatusCode != http.StatusInternalServerError || err == nil {
			c.mu.odd = append(c.mu.odd, response.Status+": "+request.URL.RawQuery)
		}
	}
}
