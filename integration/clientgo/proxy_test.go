// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"io"
	"net"
	"sync"
	"time"
)

// proxy is what clients connect to instead of the server: a TCP proxy on an
// address that stays the same while servers come and go. It breaks connections on
// demand. Its goroutines (one that accepts, two for each connection) are started
// by newProxy and awaited by close.
type proxy struct {
	listener net.Listener
	tasks    sync.WaitGroup
	mu       struct {
		sync.Mutex
		// target is the server's address; empty: there is none, and connections
		// end as soon as they begin.
		target string
		open   map[*link]struct{}
		closed bool
		// gate, unless nil, is what everything on its way to clients waits for.
		gate chan struct{}
	}
}

// link is one connection through the proxy.
type link struct {
	proxy          *proxy
	client, server net.Conn
	broken         chan struct{}
	cut            func()
	mu             struct {
		sync.Mutex
		// left is how many bytes more the client gets before the connection is
		// cut, if limited.
		left    int
		limited bool
	}
}

func newProxy() (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener}
	p.mu.open = map[*link]struct{}{}
	p.tasks.Go(p.accept)
	return p, nil
}

// address is host and port for clients.
func (p *proxy) address() string { return p.listener.Addr().String() }

// forward names the server for connections from now on.
func (p *proxy) forward(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.target = target
}

// hold lets nothing more get to any client until release. Connections stay open.
func (p *proxy) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.gate == nil {
		p.mu.gate = make(chan struct{})
	}
}

// release ends hold.
func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.gate != nil {
		close(p.mu.gate)
		p.mu.gate = nil
	}
}

func (p *proxy) gate() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.gate
}

// cut breaks all connections, and reports how many there were.
func (p *proxy) cut() int {
	links := p.links()
	for _, l := range links {
		l.cut()
	}
	return len(links)
}

// cutAfter breaks each of the open connections as soon as n more bytes have been
// sent to its client, and reports how many there are. Of what comes after them the
// client sees nothing.
func (p *proxy) cutAfter(n int) int {
	links := p.links()
	for _, l := range links {
		l.mu.Lock()
		l.mu.left, l.mu.limited = n, true
		l.mu.Unlock()
	}
	return len(links)
}

// armed is how many open connections cutAfter has still to break.
func (p *proxy) armed() int {
	n := 0
	for _, l := range p.links() {
		l.mu.Lock()
		if l.mu.limited {
			n++
		}
		l.mu.Unlock()
	}
	return n
}

func (p *proxy) links() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*link, 0, len(p.mu.open))
	for l := range p.mu.open {
		links = append(links, l)
	}
	return links
}

// close ends everything and waits for it.
func (p *proxy) close() error {
	p.mu.Lock()
	p.mu.closed = true
	p.mu.Unlock()
	err := p.listener.Close()
	p.cut()
	p.tasks.Wait()
	return err
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.tasks.Go(func() { p.serve(client) })
	}
}

// serve carries one connection until one of its ends, or the proxy, closes it.
func (p *proxy) serve(client net.Conn) {
	p.mu.Lock()
	target := p.mu.target
	p.mu.Unlock()
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		_ = client.Close()
		return
	}
	l := newLink(p, client, server)
	if !p.add(l) {
		l.cut()
		return
	}
	defer p.remove(l)
	var upwards sync.WaitGroup
	upwards.Go(func() {
		_, _ = io.Copy(server, client)
		l.cut()
	})
	_, _ = io.Copy(downwards{l}, server)
	l.cut()
	upwards.Wait()
}

func (p *proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.closed {
		p.mu.open[l] = struct{}{}
	}
	return !p.mu.closed
}

func (p *proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.open, l)
}

func newLink(p *proxy, client, server net.Conn) *link {
	l := &link{proxy: p, client: client, server: server, broken: make(chan struct{})}
	l.cut = sync.OnceFunc(func() {
		close(l.broken)
		_ = client.Close()
		_ = server.Close()
	})
	return l
}

// downwards is the way from the server to the client.
type downwards struct{ *link }

// Write implements io.Writer. It ends the connection where cutAfter said.
func (d downwards) Write(b []byte) (int, error) {
	if gate := d.proxy.gate(); gate != nil {
		select {
		case <-gate:
		case <-d.broken:
			return 0, io.ErrClosedPipe
		}
	}
	d.mu.Lock()
	last := d.mu.limited && len(b) >= d.mu.left
	if last {
		b = b[:d.mu.left]
	}
	if d.mu.limited {
		d.mu.left -= len(b)
	}
	d.mu.Unlock()
	n, err := d.client.Write(b)
	if last {
		d.cut()
		return n, io.ErrClosedPipe
	}
	return n, err
}
