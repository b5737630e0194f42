// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/kube-watchcache/watchcache/integration/internal/proxy"
	"github.com/kube-watchcache/watchcache/integration/internal/scrape"
)

// askPatience bounds a question to one member, which may be paused.
const askPatience = 2 * time.Second

// Member is one of a Cluster.
type Member struct {
	cluster *Cluster
	index   int
	node    node
	// client is the client URL of the member itself, and clients is before it.
	client  string
	clients *proxy.Proxy
	// id is etcd's name for the member, as members send it to each other.
	id      uint64
	exited  <-chan struct{}
	running bool
}

// node is one way in which a member runs.
type node interface {
	runner
	// kill ends the member at once, paused or not, and keeps its data.
	kill(ctx context.Context) error
	// isolate cuts the member off from the other members; join ends that.
	isolate(ctx context.Context) error
	join(ctx context.Context) error
	// disconnect cuts the member off from everybody; connect ends that.
	disconnect(ctx context.Context) error
	connect(ctx context.Context) error
	// slow lets each fsync take that long, or fails with slowdisk.ErrUnavailable.
	slow(ctx context.Context, each time.Duration) error
	// slowed is how many calls of fsync were slow since the member was started.
	slowed(ctx context.Context) (int64, error)
}

// String names the member.
func (m *Member) String() string { return fmt.Sprintf("member %d", m.index) }

// Clients is the proxy before the client URL.
func (m *Member) Clients() *proxy.Proxy { return m.clients }

// Direct is the client URL of the member itself.
func (m *Member) Direct() string { return m.client }

// Start starts the member on the data that it had, unless it runs. Start does
// not wait: a member without a majority is not ready.
func (m *Member) Start(ctx context.Context) error {
	if m.running {
		return nil
	}
	exited, err := m.node.start(ctx)
	if err != nil {
		return err
	}
	m.exited, m.running = exited, true
	return nil
}

// Ready returns when the member serves consistent reads.
func (m *Member) Ready(ctx context.Context) error {
	if err := waitReady(ctx, m.client, m.exited); err != nil {
		return fmt.Errorf("%v: %w; the end of its output:\n%s", m, err, m.node.output(ctx))
	}
	return nil
}

// Kill ends the member at once, paused or not. Its data is kept.
func (m *Member) Kill(ctx context.Context) error {
	m.running = false
	return m.node.kill(ctx)
}

// Stop ends the member in good order. Its data is kept.
func (m *Member) Stop(ctx context.Context) error {
	m.running = false
	return m.node.stop(ctx)
}

// Pause freezes the member: its connections stay open, and nothing answers.
func (m *Member) Pause(ctx context.Context) error { return m.node.pause(ctx) }

// Resume ends a Pause.
func (m *Member) Resume(ctx context.Context) error { return m.node.resume(ctx) }

// Isolate cuts the member off from the other members, both ways, but not from
// its clients: containers by their network, whose packets then get lost, processes
// by proxies, which break connections.
func (m *Member) Isolate(ctx context.Context) error { return m.node.isolate(ctx) }

// Join ends Isolate.
func (m *Member) Join(ctx context.Context) error { return m.node.join(ctx) }

// Disconnect cuts the member off from the other members and from its clients. The
// clients of a process are cut off at the proxy Clients only.
func (m *Member) Disconnect(ctx context.Context) error { return m.node.disconnect(ctx) }

// Connect ends Disconnect.
func (m *Member) Connect(ctx context.Context) error { return m.node.connect(ctx) }

// SlowDisk lets each fsync of the member take that long from now on, until the
// member is started again; 0: as quick as before. SlowDisk fails with
// slowdisk.ErrUnavailable where it is not possible, or if the cluster was started
// without it.
func (m *Member) SlowDisk(ctx context.Context, each time.Duration) error {
	return m.node.slow(ctx, each)
}

// SlowSyncs is how many calls of fsync SlowDisk has made wait since the member was
// started.
func (m *Member) SlowSyncs(ctx context.Context) (int64, error) { return m.node.slowed(ctx) }

// Watchers is how many watches the member serves, as its own metrics say.
func (m *Member) Watchers(ctx context.Context) (int, error) {
	return m.metric(ctx, "etcd_debugging_mvcc_watcher_total")
}

// WatchStreams is how many streams of watches the member serves, as its own
// metrics say.
func (m *Member) WatchStreams(ctx context.Context) (int, error) {
	return m.metric(ctx, "etcd_debugging_mvcc_watch_stream_total")
}

func (m *Member) metric(ctx context.Context, name string) (int, error) {
	n, err := metric(ctx, m.client, name)
	return int(n), err
}

func metric(ctx context.Context, url, name string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return scrape.Value(ctx, client, url+"/metrics", name)
}
