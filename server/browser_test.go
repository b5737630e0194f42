// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// readingPage has a browser read a URL and send the body back to where the page is from.
// Chromium gives up all requests when a network interface comes or goes
// (ERR_NETWORK_CHANGED), as those of other tests' containers do: the page tries again.
const readingPage = `<script>
const tries = (f, n) => f().catch(e => n > 0 ? new Promise(r => setTimeout(r, 200)).then(() => tries(f, n - 1)) : String(e))
tries(() => fetch(%q).then(answer => answer.arrayBuffer()), 50).then(body => tries(() => fetch("/", {method: "POST", body}), 50))
</script>`

// askChromium returns the body that a page in Chromium reads. The page sends the body
// to the test, which does not depend on the browser's end: with --dump-dom, Chromium
// now and then did not end on a busy machine.
func askChromium(t *testing.T, url string) []byte {
	t.Helper()
	const program = "chromium"
	find(t, true, program)
	bodies := make(chan []byte, 1)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprintf(w, readingPage, url)
			return
		}
		if body, err := io.ReadAll(r.Body); err == nil {
			bodies <- body
		}
	}))
	defer page.Close()
	// Children of the browser may write there for a moment after the browser's end.
	dir, err := os.MkdirTemp("", "watchcache-chromium-")
	require.NoError(t, err)
	defer func() { _ = os.RemoveAll(dir) }()

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	running, end := context.WithCancel(ctx)
	defer end()
	command := exec.CommandContext(running, program, "--headless", "--no-sandbox", "--disable-gpu", "--ignore-certificate-errors",
		"--disable-web-security", "--user-data-dir="+dir, page.URL) // the page reads from another server
	var diagnostics bytes.Buffer
	command.Stderr = &diagnostics
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 10 * time.Second
	require.NoError(t, command.Start())
	var body []byte
	select {
	case body = <-bodies:
	case <-ctx.Done():
	}
	end()
	_ = command.Wait() // which says that the test has ended it
	require.NoError(t, ctx.Err(), "the page sends nothing: %s", &diagnostics)
	return body
}
