// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-watchcache/watchcache/bench/boundary"
)

// beginning measures watches that begin with the whole state, several at once.
type beginning struct {
	servers
	watchers, repeats int
	gzip              bool
}

func (m beginning) open(ctx context.Context, s size) (*work, error) {
	stage, err := m.servers.open(ctx, s.objects, false)
	if err != nil {
		return nil, err
	}
	m.watchers = s.of(m.watchers, s.watchers)
	state := boundary.Beginning{Objects: s.objects, Gzip: m.gzip}
	do := func(ctx context.Context, sub subject, with func(*boundary.Server, *crowd) error) error {
		server, _, err := stage.server(ctx, sub)
		if err != nil {
			return err
		}
		clients, err := connect(server, m.watchers)
		if err != nil {
			return err
		}
		defer clients.close()
		// Connections are opened, and the answer is checked.
		if err := clients.begin(ctx, state, nothing); err != nil {
			return err
		}
		return with(server, clients)
	}
	measure := func(ctx context.Context, sub subject) (figures []float64, err error) {
		err = do(ctx, sub, func(server *boundary.Server, clients *crowd) error {
			var err error
			figures, err = measureLoad(ctx, s.of(m.repeats, s.repeats), server, clients.received,
				func(ctx context.Context, took func(time.Duration)) error { return clients.begin(ctx, state, took) })
			return err
		})
		return figures, err
	}
	profile := func(ctx context.Context, sub subject) (b boundary.Breakdown, err error) {
		err = do(ctx, sub, func(server *boundary.Server, clients *crowd) error {
			var err error
			b, err = server.Profile(ctx, profileSeconds(s), func(ctx context.Context) error { return clients.begin(ctx, state, nothing) })
			return err
		})
		return b, err
	}
	return &work{measure: measure, profile: profile, close: stage.close}, nil
}

// crowd is clients with a connection each.
type crowd struct {
	clients []*boundary.Client
}

func connect(server *boundary.Server, n int) (*crowd, error) {
	c := &crowd{}
	for range n {
		client, err := server.Connect()
		if err != nil {
			c.close()
			return nil, err
		}
		c.clients = append(c.clients, client)
	}
	return c, nil
}

func (c *crowd) close() {
	for _, client := range c.clients {
		client.Close()
	}
}

func (c *crowd) received() int64 {
	sum := int64(0)
	for _, client := range c.clients {
		sum += client.Received()
	}
	return sum
}

// begin has each client watch once, to the end of its initial events.
func (c *crowd) begin(ctx context.Context, state boundary.Beginning, took func(time.Duration)) error {
	group, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex // of took
	for _, client := range c.clients {
		group.Go(func() error {
			begun := time.Now()
			w, err := client.WatchList(ctx, state)
			if err != nil {
				return err
			}
			w.End()
			mu.Lock()
			defer mu.Unlock()
			took(time.Since(begun))
			return nil
		})
	}
	return group.Wait()
}

// delivery measures events at a fixed rate to watchers with a connection each.
type delivery struct {
	servers
	watchers, perSecond, events int
	// gzip: watchers begin with the devices of one label, compressed, and the
	// events are those of that label. The server compresses what it sends to such
	// a watcher for as long as the watch lasts.
	gzip bool
}

// The label that a hundredth of the devices have.
const (
	batchSelector = "fleet.example.com/batch=batch-07"
	batchFirst    = 7
	batchStride   = 100
)

func (m delivery) open(ctx context.Context, s size) (*work, error) {
	stage, err := m.servers.open(ctx, s.objects, false)
	if err != nil {
		return nil, err
	}
	m.watchers = s.of(m.watchers, s.watchers)
	m.events = s.of(m.events, s.repeats)
	measure := func(ctx context.Context, sub subject) ([]float64, error) {
		server, _, err := stage.server(ctx, sub)
		if err != nil {
			return nil, err
		}
		return m.measure(ctx, stage, server, sub)
	}
	profile := func(ctx context.Context, sub subject) (b boundary.Breakdown, err error) {
		server, _, err := stage.server(ctx, sub)
		if err != nil {
			return nil, err
		}
		a, err := m.audience(ctx, stage, server)
		if err != nil {
			return nil, err
		}
		defer a.leave()
		busy := func(ctx context.Context) error { return a.send(ctx, stage, sub, m.perSecond, m.perSecond, nil) }
		return server.Profile(ctx, profileSeconds(s), busy)
	}
	return &work{measure: measure, profile: profile, close: stage.close}, nil
}

func (m delivery) measure(ctx context.Context, stage *stage, server *boundary.Server, sub subject) ([]float64, error) {
	a, err := m.audience(ctx, stage, server)
	if err != nil {
		return nil, err
	}
	defer a.leave()
	// Buffers of connections have their size after a few events.
	if err := a.send(ctx, stage, sub, m.perSecond, m.perSecond, nil); err != nil {
		return nil, err
	}
	before, err := lookAt(server, a.received)
	if err != nil {
		return nil, err
	}
	latencies := make([][]time.Duration, m.watchers)
	if err := a.send(ctx, stage, sub, m.perSecond, m.events, latencies); err != nil {
		return nil, err
	}
	var all []time.Duration
	for _, of := range latencies {
		all = append(all, of...)
	}
	figures, err := costOf(server, a.received, before, all)
	if err != nil {
		return nil, err
	}
	figures[0] *= float64(m.watchers) // of an event, and not of one of its deliveries
	return figures, nil
}

// audience is watches that wait for events, with a connection each.
type audience struct {
	clients *crowd
	watches []*boundary.Watch
	// changed is the devices that the watchers see, in the order of their changes.
	changed []int
	sent    int
}

func (m delivery) audience(ctx context.Context, stage *stage, server *boundary.Server) (_ *audience, err error) {
	a := &audience{}
	first, stride := 0, 1
	if m.gzip {
		first, stride = batchFirst, batchStride
	}
	for i := first; i < stage.objects; i += stride {
		a.changed = append(a.changed, i)
	}
	if a.clients, err = connect(server, m.watchers); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.leave()
		}
	}()
	latest, err := a.clients.clients[0].Latest(ctx)
	if err != nil {
		return nil, err
	}
	for _, client := range a.clients.clients {
		var w *boundary.Watch
		if m.gzip {
			w, err = client.WatchList(ctx, boundary.Beginning{Selector: batchSelector, Objects: len(a.changed), Gzip: true})
		} else {
			w, err = client.OpenWatch(ctx, latest)
		}
		if err != nil {
			return nil, err
		}
		a.watches = append(a.watches, w)
	}
	return a, nil
}

// leave ends the watches and their connections.
func (a *audience) leave() {
	for _, w := range a.watches {
		w.End()
	}
	a.clients.close()
}

func (a *audience) received() int64 { return a.clients.received() }

// send changes n devices at a rate, and returns when every watcher has all of the
// events. If latencies is not nil, it gets those of each watcher, from before the
// write to etcd.
func (a *audience) send(ctx context.Context, stage *stage, sub subject, perSecond, n int, latencies [][]time.Duration) error {
	begun := make([]time.Time, n)
	started := make([]chan struct{}, n)
	for i := range started {
		started[i] = make(chan struct{})
	}
	group, ctx := errgroup.WithContext(ctx)
	// A watcher that waits for an event that does not come ends with its watch.
	failed := func(err error) error {
		a.leave()
		return err
	}
	for i, w := range a.watches {
		group.Go(func() error {
			for k := range n {
				if err := w.Next(); err != nil {
					return failed(err)
				}
				got := time.Now()
				<-started[k]
				if latencies != nil {
					latencies[i] = append(latencies[i], got.Sub(begun[k]))
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		ticker := time.NewTicker(time.Second / time.Duration(perSecond))
		defer ticker.Stop()
		for k := range n {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return failed(ctx.Err())
			}
			begun[k] = time.Now()
			close(started[k])
			a.sent++
			if err := stage.Change(ctx, forms[sub], a.changed[a.sent%len(a.changed)], a.sent); err != nil {
				return failed(err)
			}
		}
		return nil
	})
	return group.Wait()
}
