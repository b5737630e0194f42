// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/debug"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/integration/debugpage"
	"github.com/kube-watchcache/watchcache/internal/needs"
)

// patience is how long a test waits for what must happen, on a loaded machine.
const patience = 4 * time.Minute

const (
	devices  = "/apis/fleet.example.com/v1/devices?watch=true&resourceVersion=0"
	resource = "devices.fleet.example.com"
)

// fixture is a server, and a browser that has its page open.
type fixture struct {
	t      *testing.T
	server *debugpage.Server
	robot  *http.Client
	page   string // the URL of the page, through the proxy
	ctx    context.Context

	puts  int64           // calls of put
	reads []*atomic.Int64 // lines that each watch that reads has got

	mu struct {
		sync.Mutex
		complaints []string // of the browser's console
		hosts      map[string]bool
	}
}

// open starts the server and the browser, as a user.
func open(t *testing.T, user string, options ...cacher.Option) *fixture {
	t.Helper()
	path := needs.Program(t, "chromium", "chromium", "chromium-browser", "google-chrome")
	server, err := debugpage.Start(options...)
	require.NoError(t, err)
	f := &fixture{t: t, server: server}
	f.mu.hosts = map[string]bool{}
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	f.robot, err = server.Client(debugpage.Robot)
	require.NoError(t, err)
	t.Cleanup(f.robot.CloseIdleConnections)

	target, err := url.Parse(server.URL)
	require.NoError(t, err)
	as, err := server.Client(user)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = as.Transport
	front := httptest.NewServer(proxy)
	t.Cleanup(front.Close)
	t.Cleanup(as.CloseIdleConnections)
	f.page = front.URL + debug.Path

	allocator, stop := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.Flag("headless", "new"), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(patience))...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	ctx, cancelTimeout := context.WithTimeout(ctx, 2*patience)
	t.Cleanup(cancelTimeout)
	f.ctx = ctx
	chromedp.ListenTarget(ctx, f.listen)
	f.do(log.Enable(), network.Enable(), runtime.Enable())
	return f
}

// listen notes what the page complains of and whom it asks.
func (f *fixture) listen(event any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		f.mu.complaints = append(f.mu.complaints, fmt.Sprintf("console.%s: %v", e.Type, e.Args))
	case *runtime.EventExceptionThrown:
		f.mu.complaints = append(f.mu.complaints, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		f.mu.complaints = append(f.mu.complaints, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err == nil && u.Scheme != "data" {
			f.mu.hosts[u.Host] = true
		}
	}
}

// expectClean checks that the page has had nothing to complain of, and has asked
// nobody but its own server.
func (f *fixture) expectClean() {
	f.t.Helper()
	own, err := url.Parse(f.page)
	require.NoError(f.t, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Empty(f.t, f.mu.complaints)
	require.Equal(f.t, map[string]bool{own.Host: true}, f.mu.hosts)
}

func (f *fixture) do(actions ...chromedp.Action) {
	f.t.Helper()
	require.NoError(f.t, chromedp.Run(f.ctx, actions...))
}

// eval returns the string that an expression of JavaScript gives.
func (f *fixture) eval(expression string) (out string) {
	f.t.Helper()
	f.do(chromedp.Evaluate("String("+expression+")", &out))
	return out
}

// until waits for an expression to become true.
func (f *fixture) until(expression string) {
	f.t.Helper()
	var done bool
	err := chromedp.Run(f.ctx, chromedp.Poll(expression, &done, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(patience)))
	if err != nil {
		require.NoError(f.t, err, "never true: %s\nthe page says: %s", expression, f.eval("document.body.innerText"))
	}
}

// The expressions of tests. cells is a list of the texts of one column.
const cellsOf = `[...document.querySelectorAll('table[aria-label=%q] tbody tr')].map(r => r.cells[%d].innerText)`

func cells(table string, column int) string { return fmt.Sprintf(cellsOf, table, column) }

// put stores a device of about 10 KB.
func (f *fixture) put(name string) {
	f.puts++
	f.server.Store.Put("/fleet.example.com/devices/ns/"+name, &fleet.Device{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "ns", Annotations: map[string]string{"weight": strings.Repeat("x", 10_000)},
	}})
}

// putAndAwait stores a device so many times, and waits until every watch that reads
// has got the last. The storage is in memory: without the wait it is faster than
// sixty clients can read, until the window has no room and they are told 410.
func (f *fixture) putAndAwait(name string, times int) {
	f.t.Helper()
	for range times {
		f.put(name)
	}
	for _, lines := range f.reads {
		require.Eventually(f.t, func() bool { return lines.Load() >= f.puts }, patience, time.Millisecond, "a watch that reads has not got all")
	}
}

// watch opens a watch that reads all, or nothing but what the connection buffers. It ends
// with the test.
func (f *fixture) watch(agent string, reads bool) {
	f.t.Helper()
	var lines atomic.Int64
	if reads {
		lines.Store(f.puts - 1) // all puts are of one device, which the watch begins with
		f.reads = append(f.reads, &lines)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.server.URL+devices, nil)
	require.NoError(f.t, err)
	request.Header.Set("User-Agent", agent)
	client := f.robot
	if !reads { // what it leaves unread must not block the connection of the others
		client, err = f.server.Client(debugpage.Robot)
		require.NoError(f.t, err)
		f.t.Cleanup(client.CloseIdleConnections)
	}
	response, err := client.Do(request)
	require.NoError(f.t, err)
	require.Equal(f.t, http.StatusOK, response.StatusCode)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 64<<10)
		for reads {
			n, err := response.Body.Read(buffer)
			lines.Add(int64(bytes.Count(buffer[:n], []byte("\n"))))
			if err != nil {
				return
			}
		}
	}()
	f.t.Cleanup(func() {
		cancel()
		_ = response.Body.Close() // the context has ended it
		<-ended
	})
}
