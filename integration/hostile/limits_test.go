// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// speak opens a connection of HTTP/1.1 as a user and writes text to it.
func (f *fixture) speak(t *testing.T, user, text string) *tls.Conn {
	t.Helper()
	config := f.tls(t, user)
	config.NextProtos = []string{"http/1.1"}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(f.Config.Host, "https://"), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	return conn
}

// TestOversized: a body and a header that are too large are refused.
func TestOversized(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, http2 := range []bool{false, true} {
		client := f.client(t, alice, http2)
		body := `{"apiVersion":"fleet.example.com/v1","kind":"Device","metadata":{"name":"large","annotations":{"a":"` + strings.Repeat("x", 4<<20) + `"}}}`
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.Config.Host+in(ours), strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		require.NoError(t, err)
		_ = response.Body.Close()
		require.Equal(t, http.StatusRequestEntityTooLarge, response.StatusCode)
	}
	conn := f.speak(t, alice, "GET "+in(ours)+" HTTP/1.1\r\nHost: a\r\n")
	go func() { _, _ = io.Copy(conn, strings.NewReader("X-Large: "+strings.Repeat("x", 2<<20))) }() // ends when the server closes
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	_ = response.Body.Close()
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, response.StatusCode)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.Config.Host+in(ours)+"?labelSelector="+strings.Repeat("x", 2<<20), nil)
	require.NoError(t, err)
	response, err = f.client(t, alice, true).Do(request)
	if err == nil {
		_ = response.Body.Close()
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, response.StatusCode)
	}
	a, err := f.ask(t.Context(), f.client(t, alice, true), in(ours), asJSON, false, "")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.status)
}

// TestSlow: a client that does not end its header, and one that does not send its
// body, are sent away. (Over HTTP/1.1 net/http waits for the body of a request
// before it answers: see SECURITY.md.)
func TestSlow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	header := f.speak(t, alice, "GET "+in(ours)+" HTTP/1.1\r\nHost: a\r\n")
	body, never := io.Pipe()
	defer never.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.Config.Host+in(ours)+"?timeout=1s", body)
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := f.client(t, alice, true).Do(request)
	require.NoError(t, err)
	_ = response.Body.Close()
	require.Equal(t, http.StatusGatewayTimeout, response.StatusCode)
	// k8s.io/apiserver waits for 32 s.
	rest, err := io.ReadAll(header)
	require.NoError(t, err, "the server closes the connection")
	require.NotContains(t, string(rest), "200 OK")
}

// TestTooManyAtOnce: of writes that pile up before an etcd that does not answer
// some are told to retry, by priority and fairness; all of them end when etcd
// answers, and the server serves as before.
func TestTooManyAtOnce(t *testing.T) {
	t.Parallel()
	const clients, each = 12, 100 // more than may be served and queued in all
	f := newFixture(t)
	ctx, writers := background(t)
	var refused, ended atomic.Int64
	require.NoError(t, f.etcd.Pause(ctx))
	resume := func() { require.NoError(t, f.etcd.Resume(context.Background())) }
	for c := range clients {
		client := f.client(t, alice, true)
		for i := range each {
			writers.Go(func() {
				body := fmt.Appendf(nil, `{"apiVersion":"fleet.example.com/v1","kind":"Device","metadata":{"name":"d-%d-%d"},"spec":{"zone":"z","owner":"o","model":"m"}}`, c, i)
				request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.Config.Host+in(ours), bytes.NewReader(body))
				if err != nil {
					return
				}
				request.Header.Set("Content-Type", "application/json")
				response, err := client.Do(request)
				if err != nil {
					return
				}
				_ = response.Body.Close()
				if response.StatusCode == http.StatusTooManyRequests && response.Header.Get("Retry-After") != "" {
					refused.Add(1)
				}
				ended.Add(1)
			})
		}
	}
	require.Eventually(t, func() bool { return refused.Load() > 0 }, patience, 10*time.Millisecond)
	resume()
	require.Eventually(t, func() bool { return ended.Load() == clients*each }, patience, 10*time.Millisecond)
	a, err := f.ask(ctx, f.client(t, bound, true), in(ours), asJSON, false, "")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.status, a.body)
	fmt.Printf("writes before an etcd that does not answer: %d of %d told to retry\n", refused.Load(), clients*each)
}
