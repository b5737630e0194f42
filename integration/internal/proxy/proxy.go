// SPDX-License-Identifier: Apache-2.0

// Package proxy is a TCP proxy that breaks what goes through it on demand, so
// that a test has a network's faults without being root.
package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// dialTimeout bounds the connection to the target.
const dialTimeout = 5 * time.Second

// errBroken ends the copying of a connection that the proxy broke.
var errBroken = errors.New("proxy: the connection was broken")

// Proxy forwards each connection to its target. Its address stays the same
// while targets come and go. Its goroutines (one that accepts, two for
// each connection) are started by Listen and awaited by Close. Its methods are
// safe for concurrent use.
type Proxy struct {
	listener net.Listener
	// source finds, in what a client sends, the name of the client; nil: clients
	// have no names.
	source func([]byte) string
	tasks  sync.WaitGroup
	mu     struct {
		sync.Mutex
		// target is where new connections lead; empty: nowhere, and they end as
		// soon as they begin.
		target string
		open   map[*link]struct{}
		closed bool
		// gate, unless nil, is what everything on its way waits for.
		gate chan struct{}
		// delay draws how long each piece of a connection waits before it is passed
		// on, when the connection asks first; nil: it does not wait. Each Delay and
		// Heal makes another era, in which connections ask again.
		delay func() time.Duration
		era   int
		// refuses is true while every connection is closed at once; barred are
		// the clients whose connections are.
		refuses bool
		barred  map[string]bool
	}
}

// Listen starts a proxy to target on a free port of 127.0.0.1. An empty target
// closes connections at once, until Forward names another. source, unless
// nil, gives the name of a client from a piece of what it sends, and "" if the
// piece does not tell.
func Listen(target string, source func([]byte) string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, source: source}
	p.mu.target = target
	p.mu.open = map[*link]struct{}{}
	p.mu.barred = map[string]bool{}
	p.tasks.Go(p.accept)
	return p, nil
}

// Header gives a source for Listen: the value of an HTTP/1 header.
func Header(name string) func([]byte) string {
	prefix := []byte("\r\n" + name + ": ")
	return func(sent []byte) string {
		_, rest, found := bytes.Cut(sent, prefix)
		if !found {
			return ""
		}
		value, _, _ := bytes.Cut(rest, []byte("\r\n"))
		return string(value)
	}
}

// Address is host and port for clients.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Forward names the target of connections from now on; those that are open keep
// theirs.
func (p *Proxy) Forward(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.target = target
}

// Silence lets nothing through, either way, until Heal. Connections stay open
// and new ones are accepted; nothing is lost.
func (p *Proxy) Silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.gate == nil {
		p.mu.gate = make(chan struct{})
	}
}

// Delay holds each piece of what goes through back for d, until Heal.
func (p *Proxy) Delay(d time.Duration) { p.DelayEach(func() time.Duration { return d }) }

// DelayEach holds what goes through back, until Heal: each connection, each way,
// for as long as draw says when the first piece comes, so that what is sent on one
// overtakes what was sent before on another. draw is called by one goroutine at a
// time.
func (p *Proxy) DelayEach(draw func() time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.delay = draw
	p.mu.era++
}

// Refuse breaks all connections, and every new one, until Heal.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	p.mu.refuses = true
	p.mu.Unlock()
	p.Cut()
}

// Bar breaks all connections of the client, and every new one, until Heal.
func (p *Proxy) Bar(client string) {
	p.mu.Lock()
	p.mu.barred[client] = true
	p.mu.Unlock()
	for _, l := range p.links() {
		if l.name() == client {
			l.cut()
		}
	}
}

// Heal ends Silence, Delay, DelayEach, Refuse and Bar.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.gate != nil {
		close(p.mu.gate)
		p.mu.gate = nil
	}
	p.mu.delay, p.mu.refuses = nil, false
	p.mu.era++
	clear(p.mu.barred)
}

// Cut breaks all connections, and reports how many there were.
func (p *Proxy) Cut() int {
	links := p.links()
	for _, l := range links {
		l.cut()
	}
	return len(links)
}

// CutAfter breaks each of the open connections as soon as n more bytes have been
// sent to its client, which sees nothing of what comes after them. CutAfter
// reports how many connections there are.
func (p *Proxy) CutAfter(n int) int {
	links := p.links()
	for _, l := range links {
		l.limit(n)
	}
	return len(links)
}

// Limited is how many open connections CutAfter has still to break.
func (p *Proxy) Limited() int {
	n := 0
	for _, l := range p.links() {
		if l.limited() {
			n++
		}
	}
	return n
}

// Close ends everything and waits for it. Close may be called more than once.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.mu.closed = true
	p.mu.Unlock()
	err := p.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	p.Cut()
	p.tasks.Wait()
	return err
}

func (p *Proxy) links() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*link, 0, len(p.mu.open))
	for l := range p.mu.open {
		links = append(links, l)
	}
	return links
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.tasks.Go(func() { p.serve(client) })
	}
}

// serve carries one connection until one of its ends, or the proxy, closes it.
func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	target := p.mu.target
	p.mu.Unlock()
	server, err := net.DialTimeout("tcp", target, dialTimeout)
	if err != nil {
		_ = client.Close()
		return
	}
	l := newLink(p, client, server)
	defer l.cut()
	if !p.add(l) {
		return
	}
	defer p.remove(l)
	var upwards sync.WaitGroup
	upwards.Go(func() {
		_, _ = io.Copy(&way{link: l, to: server, named: p.source == nil}, client)
		l.cut()
	})
	_, _ = io.Copy(&way{link: l, to: client, named: true, down: true}, server)
	l.cut()
	upwards.Wait()
}

// add reports whether the connection may be.
func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed || p.mu.refuses {
		return false
	}
	p.mu.open[l] = struct{}{}
	return true
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.open, l)
}

// gate is what a piece on its way has to wait for.
func (p *Proxy) gate(w *way) (gate chan struct{}, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.era != p.mu.era {
		w.era, w.delay = p.mu.era, 0
		if p.mu.delay != nil {
			w.delay = p.mu.delay()
		}
	}
	return p.mu.gate, w.delay
}

func (p *Proxy) isBarred(client string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.barred[client]
}
