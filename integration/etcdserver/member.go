// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/kube-watchcache/watchcache/integration/internal/proxy"
	"github.com/kube-watchcache/watchcache/integration/internal/scrape"
)

// askPatience bounds a question to one member, which may be paused.
const askPatience = 2 * time.Second

// String names the member.
func (m *Member) String() string { return fmt.Sprintf("member %d", m.index) }

// Clients is the proxy before the client URL.
func (m *Member) Clients() *proxy.Proxy { return m.clients }

// Direct is the client URL of the member itself.
func (m *Member) Direct() string { return m.client }

// Data is the folder of the member's data.
func (m *Member) Data() string { return m.process.data }

// Start starts the member on the data that it had, unless it runs. Start does
// not wait: a member without a majority is not ready.
func (m *Member) Start(ctx context.Context) error {
	if m.running {
		return nil
	}
	exited, err := m.process.start(ctx)
	if err != nil {
		return err
	}
	m.exited, m.running = exited, true
	return nil
}

// Ready returns when the member serves consistent reads.
func (m *Member) Ready(ctx context.Context) error {
	if err := waitReady(ctx, m.client, m.exited); err != nil {
		return fmt.Errorf("%v: %w; the end of its output:\n%s", m, err, m.process.output(ctx))
	}
	return nil
}

// Kill ends the member at once, paused or not. Its data is kept.
func (m *Member) Kill() error {
	m.running = false
	return m.process.kill()
}

// Stop ends the member in good order. Its data is kept.
func (m *Member) Stop(ctx context.Context) error {
	m.running = false
	return m.process.stop(ctx)
}

// Pause freezes the member: its connections stay open, and nothing answers.
func (m *Member) Pause(ctx context.Context) error { return m.process.pause(ctx) }

// Resume ends a Pause.
func (m *Member) Resume(ctx context.Context) error { return m.process.resume(ctx) }

// Isolate cuts the member off from the other members, both ways, but not from
// its clients.
func (m *Member) Isolate() {
	name := strconv.FormatUint(m.id, 16)
	m.peers.Refuse()
	for _, other := range m.cluster.members {
		if other != m {
			other.peers.Bar(name)
		}
	}
}

// Join ends Isolate, of every member.
func (m *Member) Join() {
	for _, each := range m.cluster.members {
		each.peers.Heal()
	}
}

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
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	n, err := scrape.Value(ctx, client, m.client+"/metrics", name)
	return int(n), err
}
