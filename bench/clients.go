// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// watchClients is the clients of watches: for each one a goroutine that takes the
// events, and a context of its own, as a request has.
type watchClients struct {
	clients []*client
	running sync.WaitGroup // the clients' goroutines
	leaving atomic.Bool
}

// client is one of them.
type client struct {
	want   int
	watch  watch.Interface
	cancel context.CancelFunc

	got  atomic.Int64
	gone atomic.Bool // it takes no more events

	// For when the clients have left: the watch was closed before that, and an
	// error came.
	dropped, failed bool
}

// watcher is what Watch is called on.
type watcher interface {
	Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error)
}

// watchRequest is what a client asks for.
type watchRequest struct {
	ctx  context.Context
	key  string
	opts storage.ListOptions
	// want is how many events the client is to get.
	want int
	// stalled: the client never takes an event.
	stalled bool
	// received, if not nil, is called with the number of each event, from 0.
	received func(n int)
}

// join opens a watch and starts its client. leave ends both.
func (a *watchClients) join(on watcher, r watchRequest) error {
	ctx, cancel := context.WithCancel(r.ctx)
	w, err := on.Watch(ctx, r.key, r.opts)
	if err != nil {
		cancel()
		return err
	}
	c := &client{want: r.want, watch: w, cancel: cancel}
	a.clients = append(a.clients, c)
	if r.stalled {
		return nil
	}
	a.running.Add(1)
	go func() {
		defer a.running.Done()
		a.receive(c, w.ResultChan(), r.received)
	}()
	return nil
}

func (a *watchClients) receive(c *client, events <-chan watch.Event, received func(n int)) {
	defer c.gone.Store(true)
	for event := range events {
		if event.Type == watch.Error {
			c.failed = true
			continue
		}
		n := c.got.Add(1)
		if received != nil {
			received(int(n) - 1)
		}
	}
	c.dropped = !a.leaving.Load()
}

// await returns when every client has got as many events as want says, or its
// watch was closed.
func (a *watchClients) await(ctx context.Context, patience time.Duration, want func(i int, c *client) int) error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	begun := time.Now()
	for i, c := range a.clients {
		for n := int64(want(i, c)); c.got.Load() < n && !c.gone.Load(); {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return ctx.Err()
			}
			if time.Since(begun) > patience {
				return fmt.Errorf("after %v client %d has %d events, want %d", patience, i, c.got.Load(), n)
			}
		}
	}
	return nil
}

// everything has await wait for all events that clients want.
func everything(_ int, c *client) int { return c.want }

// leave ends all watches and returns when the clients have ended.
func (a *watchClients) leave() {
	a.leaving.Store(true)
	for _, c := range a.clients {
		c.cancel()
		c.watch.Stop()
	}
	a.running.Wait()
}

// outcome is what came of clients that have left: how many watches were
// closed, and how many events did not arrive, of those that clients wanted.
type outcome struct{ dropped, lost int }

func (a *watchClients) outcome() outcome {
	var o outcome
	for _, c := range a.clients {
		if c.want > 0 && c.dropped {
			o.dropped++
		}
		o.lost += max(0, c.want-int(c.got.Load()))
	}
	return o
}

// complete fails unless each client got exactly what it was to get, or its
// watch was closed. complete returns how many were closed.
func (a *watchClients) complete() (closed int, err error) {
	for i, c := range a.clients {
		got := int(c.got.Load())
		switch {
		case c.dropped && got < c.want:
			closed++
		case got != c.want || c.failed:
			return 0, fmt.Errorf("client %d of %d got %d events, want %d (failed: %v)", i, len(a.clients), got, c.want, c.failed)
		}
	}
	return closed, nil
}

// settle returns when the number of goroutines does not change any more, which
// is when new watches have begun and ended ones are gone.
func settle(ctx context.Context) error {
	const interval, still = 5 * time.Millisecond, 10
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for last, same := runtime.NumGoroutine(), 0; same < still; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if n := runtime.NumGoroutine(); n == last {
			same++
		} else {
			last, same = n, 0
		}
	}
	return nil
}
