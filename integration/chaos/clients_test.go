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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
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
	run *run
	// epoch tells apart what is written before and after a backup was restored.
	epoch  int
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

// counts are what the timeline shows.
type counts struct {
	writes, unanswered, reads, unread, events, opened, expired, broken, refused atomic.Int64
	// inside counts the events, among those, that were delivered in the test's process.
	inside atomic.Int64
}

func newClients(r *run, epoch int) *clients {
	c := &clients{run: r, epoch: epoch, hurried: make(chan struct{})}
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
	for _, s := range c.run.entries() {
		for range writersEach {
			w := &writer{clients: c, id: n, client: s.connect(t), random: random()}
			c.tasks.Go(func() { w.run(ctx) })
		}
		for i, kind := range readKinds {
			r := &reader{clients: c, id: n, name: fmt.Sprintf("reader %s of %s", kind.name, s.name), client: s.connect(t), random: random(), kind: kind, selection: i}
			c.tasks.Go(func() { r.run(ctx) })
		}
		for i := range watchersEach {
			w := newWatcher(c, fmt.Sprintf("%d of %s", i, s.name), s.connect(t), selectionOf(i), startOf(i))
			w.pause, w.inside = pauseOf(i), s.inside
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

// begin notes what is there before the load begins.
func (c *clients) begin(items map[string]judge.Item) {
	for key, item := range items {
		op := judge.Op{Client: -1, Verb: judge.Put, Key: key, Content: item.Content, RV: item.RV, Outcome: judge.OK, Call: c.now()}
		op.Return = c.now()
		c.noteWrite(op)
	}
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

// client is one way to a server.
type client interface {
	devices(namespace string) devices
}

// devices is what clients ask of a server: a part of the generated client's
// DeviceInterface.
type devices interface {
	Create(context.Context, *fleetv1.Device, metav1.CreateOptions) (*fleetv1.Device, error)
	Update(context.Context, *fleetv1.Device, metav1.UpdateOptions) (*fleetv1.Device, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
	Get(context.Context, string, metav1.GetOptions) (*fleetv1.Device, error)
	List(context.Context, metav1.ListOptions) (*fleetv1.DeviceList, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*fleetv1.Device, error)
}

// overHTTPS is the client of a server that is a process.
type overHTTPS struct{ *versioned.Clientset }

func (c overHTTPS) devices(namespace string) devices { return c.FleetV1().Devices(namespace) }

// entry is a server as its clients see it. connect gives a client with connections
// of its own; inside says that it has none, but calls the storage.
type entry struct {
	name    string
	connect func(*testing.T) client
	inside  bool
}

// entries are the servers that clients use.
func (r *run) entries() (all []entry) {
	for _, s := range r.servers {
		all = append(all, entry{name: s.name, connect: func(t *testing.T) client { return overHTTPS{s.devices(t)} }})
	}
	return append(all, entry{name: r.inside.name, connect: func(*testing.T) client { return r.inside }, inside: true})
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
