// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net"
	"sync"
	"time"
)

// link is one connection through the proxy.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	broken         chan struct{}
	cut            func()
	mu             struct {
		sync.Mutex
		client string // its name; empty until it is known
		// left, unless nil, is how many bytes more the client gets before the
		// connection is cut.
		left *int
	}
}

func newLink(p *Proxy, client, server net.Conn) *link {
	l := &link{proxy: p, client: client, server: server, broken: make(chan struct{})}
	l.cut = sync.OnceFunc(func() {
		close(l.broken)
		_ = client.Close()
		_ = server.Close()
	})
	return l
}

func (l *link) name() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.client
}

func (l *link) setName(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.client = name
}

// limit has the connection cut after n more bytes to the client.
func (l *link) limit(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.left = &n
}

func (l *link) limited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.left != nil
}

// allow gives what the client may have of b, and whether the connection ends
// with it.
func (l *link) allow(b []byte) (allowed []byte, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.left == nil {
		return b, false
	}
	if last = len(b) >= *l.mu.left; last {
		b = b[:*l.mu.left]
	}
	*l.mu.left -= len(b)
	return b, last
}

// way is one direction of a link.
type way struct {
	*link
	to    io.Writer
	named bool // the client's name is known, or of no use
	down  bool // from the target to the client
	// delay was drawn in the era of the proxy.
	delay time.Duration
	era   int
}

// Write implements io.Writer. Write passes b on when the proxy lets it.
func (w *way) Write(b []byte) (int, error) {
	if err := w.identify(b); err != nil {
		return 0, err
	}
	gate, delay := w.proxy.gate(w)
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-w.broken:
			return 0, errBroken
		}
	}
	if gate != nil {
		select {
		case <-gate:
		case <-w.broken:
			return 0, errBroken
		}
	}
	if !w.down {
		return w.to.Write(b)
	}
	b, last := w.allow(b)
	n, err := w.to.Write(b)
	if last {
		w.cut()
		return n, errBroken
	}
	return n, err
}

// identify fails if b shows that the client is barred. The name is set before
// the look, and Bar bars before it looks at names: one of the two sees it.
func (w *way) identify(b []byte) error {
	if w.named {
		return nil
	}
	name := w.proxy.source(b)
	if name == "" {
		return nil
	}
	w.named = true
	w.setName(name)
	if w.proxy.isBarred(name) {
		return errBroken
	}
	return nil
}
