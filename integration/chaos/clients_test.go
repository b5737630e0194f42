// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// The shape of the load.
const (
	keys       = 24
	namespaces = 3
	lanes      = 4
	// writersEach, readersEach and watchersEach are for each server.
	writersEach   = 2
	watchersEach  = 20
	writeInterval = 150 * time.Millisecond
	readInterval  = 300 * time.Millisecond
	txnInterval   = 500 * time.Millisecond
	// requestTimeout bounds one request of a client.
	requestTimeout = 5 * time.Second
	// retryPause is how long a client waits before it tries again.
	retryPause = 100 * time.Millisecond
	pageSize   = 7
)

func namespaceOf(i int) string { return fmt.Sprintf("team-%d", i%namespaces) }
func nameOf(i int) string      { return fmt.Sprintf("device-%02d", i) }
func keyOf(i int) string       { return namespaceOf(i) + "/" + nameOf(i) }
func laneOf(i int) string      { return strconv.Itoa(i % lanes) }

// The values that writes change, so that objects enter and leave selections.
var (
	flips  = []string{"on", "off"}
	owners = []string{"red", "green", "blue"}
)

// selectionOf spreads clients over the kinds of selections.
func selectionOf(i int) judge.Selection {
	on := labels.Set{"flip": "on"}
	switch i % 6 {
	case 1:
		return judge.Selection{Namespace: namespaceOf(i / 6)}
	case 2:
		return judge.Selection{Labels: labels.SelectorFromSet(on)}
	case 3:
		return judge.Selection{Fields: fields.OneTermEqualSelector("spec.owner", owners[i/6%len(owners)])}
	case 4:
		on["lane"] = laneOf(i / 6)
		return judge.Selection{Namespace: namespaceOf(i / 6), Labels: labels.SelectorFromSet(on)}
	case 5:
		return judge.Selection{Namespace: namespaceOf(i), Fields: fields.OneTermEqualSelector("metadata.name", nameOf(i))}
	}
	return judge.Selection{}
}

// clients is the load on all servers, and what came of it. Its goroutines are
// started by start, end with its context and are awaited by stop.
type clients struct {
	run    *run
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	// reached is the highest version that was acknowledged to any writer.
	reached atomic.Int64
	known   [keys]atomic.Int64 // of each key, the version that was seen last
	// gate is held for reading by each write under way.
	gate sync.RWMutex
	// hurried is closed when slow clients have to read on.
	hurried  chan struct{}
	hurry    func()
	watchers []*watcher
	counts   counts
	mu       struct {
		sync.Mutex
		ops    []judge.Op
		writes []judge.Write
		reads  []judge.Read
		odd    judge.Violations // answers that no client expects
	}
}

// counts are what the report shows.
type counts struct {
	writes, unanswered, reads, unread, expired, broken, refused atomic.Int64
}

func newClients(r *run) *clients {
	c := &clients{run: r, hurried: make(chan struct{})}
	c.hurry = sync.OnceFunc(func() { close(c.hurried) })
	return c
}

// dawdle holds a slow client up for d, unless it has to hurry.
func (c *clients) dawdle(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.hurried:
	case <-ctx.Done():
	}
}

// start starts the load. Each client has connections of its own; n numbers the
// clients of the whole run.
func (c *clients) start(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	n := 0
	random := func() *rand.Rand {
		n++
		return rand.New(rand.NewPCG(c.run.seed, uint64(n)))
	}
	for _, s := range c.run.servers {
		for range writersEach {
			w := &writer{clients: c, id: n, client: s.devices(t), random: random()}
			c.tasks.Go(func() { w.run(ctx) })
		}
		for i, kind := range readKinds {
			r := &reader{clients: c, id: n, name: fmt.Sprintf("reader %s of %s", kind.name, s.name), client: s.devices(t), random: random(), kind: kind, selection: i}
			c.tasks.Go(func() { r.run(ctx) })
		}
		for i := range watchersEach {
			w := newWatcher(c, fmt.Sprintf("%d of %s", i, s.name), s.devices(t), selectionOf(i), startOf(i))
			w.pause = pauseOf(i)
			c.watchers = append(c.watchers, w)
			c.tasks.Go(func() { w.run(ctx) })
		}
	}
	txn := &txnWriter{clients: c, id: n, random: random()}
	c.tasks.Go(func() { txn.run(ctx) })
}

// stop ends the load, waits for its end and closes the clients' connections.
func (c *clients) stop() {
	if c.cancel == nil {
		return
	}
	c.cancel()
	c.tasks.Wait()
	for _, s := range c.run.servers {
		for _, connected := range s.connected {
			utilnet.CloseIdleConnectionsFor(connected.Transport)
		}
	}
}

// now is the time on the run's clock.
func (c *clients) now() time.Duration { return time.Since(c.run.began) }

// pauseWrites returns when no write is under way; none begins until the returned
// function is called.
func (c *clients) pauseWrites() (resume func()) {
	c.gate.Lock()
	return c.gate.Unlock
}

// noteWrite notes an operation, and what the judge of reads has to know of it.
func (c *clients) noteWrite(op judge.Op) {
	write := judge.Write{Key: op.Key, Deletes: op.Verb == judge.Delete, Content: op.Content, RV: op.RV}
	if write.Deletes {
		write.RV = op.Expect
	}
	switch op.Outcome {
	case judge.OK:
		c.counts.writes.Add(1)
		write.Done = c.run.began.Add(op.Return)
		for {
			old := c.reached.Load()
			if op.RV <= old || c.reached.CompareAndSwap(old, op.RV) {
				break
			}
		}
	case judge.Unanswered:
		c.counts.unanswered.Add(1)
	default:
		c.noteOps(op)
		return // not applied
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.ops = append(c.mu.ops, op)
	c.mu.writes = append(c.mu.writes, write)
}

func (c *clients) noteOps(ops ...judge.Op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.ops = append(c.mu.ops, ops...)
}

func (c *clients) noteRead(r judge.Read) {
	c.counts.reads.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.reads = append(c.mu.reads, r)
}

// noteOdd notes an answer that nothing explains.
func (c *clients) noteOdd(p judge.Property, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.odd.Add(p, format, args...)
}

// every calls do each interval until ctx ends. Ticks that come too late are
// dropped.
func every(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			do()
		case <-ctx.Done():
			return
		}
	}
}

// hold waits for d or the end of ctx.
func hold(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// devices gives a typed client with connections of its own, through the proxy
// before the server.
func (s *server) devices(t *testing.T) *versioned.Clientset {
	t.Helper()
	connected := apiserver.Connect(t, s.config())
	s.connected = append(s.connected, connected)
	client, err := versioned.NewForConfigAndClient(s.config(), connected)
	require.NoError(t, err)
	return client
}

// config leads through the proxy before the server. Requests are sent once: a
// client that repeats a write by itself could not tell what became of the first.
func (s *server) config() *rest.Config {
	config := rest.CopyConfig(s.Config)
	config.Host = "https://" + s.front.Address()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return once{next} })
	return config
}

// once hides the answer that asks client-go to repeat a request.
type once struct{ http.RoundTripper }

// WrappedRoundTripper lets connections be closed through it.
func (o once) WrappedRoundTripper() http.RoundTripper { return o.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o once) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := o.RoundTripper.RoundTrip(request)
	if err == nil {
		response.Header.Del("Retry-After")
	}
	return response, err
}
