// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	"github.com/kube-watchcache/watchcache/cacher"
)

// narrow makes the connections of a server's clients hold little that the client has
// not read.
func narrow(served *httptest.Server) {
	const buffer = 256 << 10
	transport := served.Client().Transport.(*http.Transport)
	transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerConnection: 1 << 16, MaxReceiveBufferPerStream: 1 << 16}
	dialer := net.Dialer{}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			err = conn.(*net.TCPConn).SetReadBuffer(buffer)
		}
		return conn, err
	}
}

// incompressible is text that hardly becomes shorter.
func incompressible(seed uint64, n int) string {
	random := rand.New(rand.NewPCG(seed, 0))
	text := make([]byte, n)
	for i := range text {
		text[i] = byte(' ' + 2 + random.IntN(56)) // no quotes, which JSON would escape
	}
	return string(text)
}

// A client that falls out of the window reads all that it was sent, then one event
// ERROR with the status 410 within the compressed body, and the end of the body.
func TestCompressedWatchExpires(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata, cacher.Configure(func(c *cacher.Config) { c.WindowBytes = 1 }), cacher.Configure(func(c *cacher.Config) { c.WatchBuffer = 2 }), cacher.Configure(func(c *cacher.Config) { c.EventsHistoryWindow = time.Second }))
	manyPods(t, s)
	narrow(s.with)
	change := 0
	for _, c := range []struct {
		accept string
		http2  bool
	}{{asJSON, false}, {asProtobuf, true}} {
		t.Run(fmt.Sprintf("%s/http2=%v", c.accept, c.http2), func(t *testing.T) {
			w := openStream(t, s.with, withState, http.Header{"Accept": {c.accept}, "Accept-Encoding": {"gzip"}}, c.http2, false)
			require.Equal(t, serverCompressesWatches, w.response.Header.Get("Content-Encoding") == "gzip")
			w.state()
			const changes, large = 60, 240 << 10
			for range changes {
				change++
				pod := testPod("ns1", "x27", change)
				pod.Annotations["text"] = incompressible(uint64(change), large)
				s.put(t, pod)
			}
			seen := 0
			for {
				event, err := w.next()
				require.NoError(t, err)
				require.NotEmpty(t, event, "the watch has ended without a word, after %d events", seen)
				if strings.Contains(event, "ERROR") {
					require.Contains(t, event, "Expired")
					break
				}
				if !strings.Contains(event, "BOOKMARK") {
					seen++
					require.Contains(t, event, "x27")
					require.Greater(t, len(event), large)
				}
			}
			require.Less(t, seen, changes)
			end, err := w.next()
			require.NoError(t, err, "the member of gzip is complete")
			require.Empty(t, end)
			rest, err := io.ReadAll(w.response.Body)
			require.NoError(t, err)
			require.Empty(t, rest, "and nothing follows it")
		})
	}
}

// Clients that are no libraries of Kubernetes read compressed watches: the state, its
// end, and what comes later, to the end of the body.
func TestClientsReadCompressedWatches(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	if !serverCompressesWatches {
		w := openStream(t, s.with, withState, http.Header{"Accept": {asJSON}, "Accept-Encoding": {"gzip"}}, true, false)
		require.Empty(t, w.response.Header.Get("Content-Encoding"))
		w.state()
		w.leave()
		return
	}
	compressed := &compressedAnswers{Handler: s.with.Config.Handler}
	url, ca, _ := serveClients(t, compressed)
	path := withState + "&pretty=false&timeoutSeconds=2"
	want := strings.Join(openStream(t, s.without, withState, http.Header{"Accept": {asJSON}}, true, false).state(), "")
	askClients(t, url+path, asJSON, ca, func(t *testing.T, body []byte) {
		got := string(body)
		require.Greater(t, len(got), len(want)-1)
		require.Equal(t, want, got[:len(want)])
		require.Positive(t, compressed.count.Swap(0), "the watch was compressed")
	})
}

// compressedAnswers counts the answers to watches that are compressed.
type compressedAnswers struct {
	http.Handler
	count atomic.Int64
}

func (c *compressedAnswers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.Handler.ServeHTTP(w, r)
	if w.Header().Get("Content-Encoding") == "gzip" && r.URL.Query().Has("watch") {
		c.count.Add(1)
	}
}

// A watch over a WebSocket is not compressed, though its client accepts gzip, and is
// not mixed up with compressed watches beside it.
func TestWebSocketBesideCompressedWatches(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	header := http.Header{"Accept": {asJSON}, "Accept-Encoding": {"gzip"}}
	plain := openStream(t, s.without, withState, http.Header{"Accept": {asJSON}}, true, false)
	want := plain.state()
	for round := range 3 {
		beside := openStream(t, s.with, withState, header, true, false)
		socket := openWebSocket(t, s.with, withState)
		require.Equal(t, want, beside.state())
		for _, event := range want {
			require.Equal(t, strings.TrimSuffix(event, "\n"), socket.message())
		}
		for i := range 3 {
			s.put(t, testPod("ns1", "added", 10*round+i))
		}
		live := plain.events(3)
		require.Equal(t, live, beside.events(3))
		for _, event := range live {
			message := socket.message()
			for strings.Contains(message, "BOOKMARK") {
				message = socket.message()
			}
			require.Equal(t, strings.TrimSuffix(event, "\n"), message)
		}
		beside.leave()
		want = openStream(t, s.without, withState, http.Header{"Accept": {asJSON}}, true, false).state()
	}
}

// webSocket reads the messages of a server (RFC 6455).
type webSocket struct {
	t    *testing.T
	from *bufio.Reader
}

// openWebSocket opens a watch over a WebSocket, as a client that accepts gzip.
func openWebSocket(t *testing.T, served *httptest.Server, path string) *webSocket {
	t.Helper()
	config := served.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"http/1.1"}
	dialer := tls.Dialer{Config: config}
	conn, err := dialer.DialContext(t.Context(), "tcp", served.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, served.URL+path, nil)
	require.NoError(t, err)
	r.Header = http.Header{
		"Accept": {asJSON}, "Accept-Encoding": {"gzip"}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Origin": {served.URL},
		"Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
	}
	require.NoError(t, r.Write(conn))
	from := bufio.NewReader(conn)
	response, err := http.ReadResponse(from, r)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	require.Empty(t, response.Header.Get("Content-Encoding"))
	return &webSocket{t, from}
}

// message returns the text of the next message.
func (s *webSocket) message() string {
	s.t.Helper()
	head := make([]byte, 2)
	_, err := io.ReadFull(s.from, head)
	require.NoError(s.t, err)
	require.Equal(s.t, byte(0x81), head[0], "a whole message of text")
	length := uint64(head[1])
	switch length {
	case 126:
		var n uint16
		require.NoError(s.t, binary.Read(s.from, binary.BigEndian, &n))
		length = uint64(n)
	case 127:
		require.NoError(s.t, binary.Read(s.from, binary.BigEndian, &length))
	}
	text := make([]byte, length)
	_, err = io.ReadFull(s.from, text)
	require.NoError(s.t, err)
	return strings.TrimSuffix(string(text), "\n")
}
