// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait that must succeed.
const patience = 30 * time.Second

// echo is a server that sends back what it gets, and its proxy.
func echo(t *testing.T, source func([]byte) string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			tasks.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	p, err := Listen(listener.Addr().String(), source)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.NoError(t, listener.Close())
		tasks.Wait()
	})
	return p
}

type client struct {
	net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *client {
	t.Helper()
	conn, err := net.Dial("tcp", p.Address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return &client{Conn: conn, lines: bufio.NewReader(conn)}
}

// ask sends lines and returns the answer, which is as long.
func (c *client) ask(lines string) (string, error) {
	if _, err := io.WriteString(c, lines); err != nil {
		return "", err
	}
	answer := make([]byte, len(lines))
	_, err := io.ReadFull(c.lines, answer)
	return string(answer), err
}

// TestSilenceLosesNothing: what was sent meanwhile arrives when it ends, on old
// connections and on those that were opened meanwhile.
func TestSilenceLosesNothing(t *testing.T) {
	p := echo(t, nil)
	before := dial(t, p)
	_, err := before.ask("hello\n")
	require.NoError(t, err)

	p.Silence()
	during := dial(t, p)
	for _, c := range []*client{before, during} {
		_, err := io.WriteString(c, "silent\n")
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		_, err = c.lines.ReadString('\n')
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	}
	p.Heal()
	for _, c := range []*client{before, during} {
		answer, err := c.lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "silent\n", answer)
	}
}

func TestRefuseBreaksOldAndNewConnections(t *testing.T) {
	p := echo(t, nil)
	c := dial(t, p)
	_, err := c.ask("hello\n")
	require.NoError(t, err)
	p.Refuse()
	_, err = c.ask("refused\n")
	require.Error(t, err)
	_, err = dial(t, p).ask("refused\n")
	require.Error(t, err)
	p.Heal()
	_, err = dial(t, p).ask("healed\n")
	require.NoError(t, err)
}

func TestBarBreaksOneClient(t *testing.T) {
	p := echo(t, Header("From"))
	hello := func(name string) string { return "GET / HTTP/1.1\r\nFrom: " + name + "\r\n\r\n" }
	a, b := dial(t, p), dial(t, p)
	for name, c := range map[string]*client{"a": a, "b": b} {
		_, err := c.ask(hello(name))
		require.NoError(t, err)
	}
	p.Bar("a")
	_, err := a.ask(hello("a"))
	require.Error(t, err)
	_, err = b.ask(hello("b"))
	require.NoError(t, err)
	_, err = dial(t, p).ask(hello("a"))
	require.Error(t, err)
	p.Heal()
	_, err = dial(t, p).ask(hello("a"))
	require.NoError(t, err)
}

func TestForwardLeadsNewConnectionsElsewhere(t *testing.T) {
	old, next := echo(t, nil), echo(t, nil)
	before := dial(t, old)
	_, err := before.ask("hello\n")
	require.NoError(t, err)

	old.Forward("")
	_, err = dial(t, old).ask("nowhere\n")
	require.Error(t, err)
	old.Forward(next.Address())
	_, err = dial(t, old).ask("elsewhere\n")
	require.NoError(t, err)
	_, err = before.ask("as before\n")
	require.NoError(t, err)
	require.Equal(t, 1, next.Cut())
}

// TestCutAfterBreaksInTheMiddle: the client gets as much as was said, and no more.
func TestCutAfterBreaksInTheMiddle(t *testing.T) {
	p := echo(t, nil)
	c := dial(t, p)
	_, err := c.ask("hello\n")
	require.NoError(t, err)
	require.Equal(t, 1, p.CutAfter(8))
	_, err = c.ask("first\n")
	require.NoError(t, err)
	require.Equal(t, 1, p.Limited())
	_, err = io.WriteString(c, "second\n")
	require.NoError(t, err)
	rest, err := io.ReadAll(c.lines)
	require.NoError(t, err)
	require.Equal(t, "se", string(rest))
}
