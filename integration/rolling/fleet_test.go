// SPDX-License-Identifier: Apache-2.0

package rolling

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
)

// patience bounds the wait for what is sure to happen.
const patience = 2 * time.Minute

// version is what a server runs.
type version struct {
	name    string
	program apiserver.Program
	flags   []string
}

// server is one of a fleet.
type server struct {
	version version
	process *apiserver.Process
	host    string
	client  http.RoundTripper
}

// fleet is servers behind one address. As a load balancer does, RoundTrip gives each request
// to the next server in service, and to another one if nobody listens there.
type fleet struct {
	etcd []string
	mu   struct {
		sync.Mutex
		servers [3]*server // nil: not in service
		next    int
		// watches are the open ones, and when each was answered.
		watches map[*watched]time.Time
	}
}

// watched is the answer to a watch.
type watched struct {
	io.ReadCloser
	fleet *fleet
	by    *server
}

func (w *watched) Close() error {
	w.fleet.mu.Lock()
	delete(w.fleet.mu.watches, w)
	w.fleet.mu.Unlock()
	return w.ReadCloser.Close()
}

var errNoServer = fmt.Errorf("no server is in service: %w", syscall.ECONNREFUSED)

func (f *fleet) RoundTrip(r *http.Request) (*http.Response, error) {
	failed := errNoServer
	for _, s := range f.inService() {
		attempt := r.Clone(r.Context())
		attempt.URL.Host = s.host
		if r.GetBody != nil {
			body, err := r.GetBody()
			if err != nil {
				return nil, err
			}
			attempt.Body = body
		}
		response, err := s.client.RoundTrip(attempt)
		if errors.Is(err, syscall.ECONNREFUSED) {
			failed = err
			continue
		}
		if err == nil && response.StatusCode == http.StatusOK && r.URL.Query().Has("watch") {
			f.opened(response, s)
		}
		return response, err
	}
	return nil, failed
}

// inService returns the servers, the one whose turn it is first.
func (f *fleet) inService() (all []*server) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.next++
	for i := range f.mu.servers {
		if s := f.mu.servers[(f.mu.next+i)%len(f.mu.servers)]; s != nil {
			all = append(all, s)
		}
	}
	return all
}

func (f *fleet) opened(response *http.Response, by *server) {
	w := &watched{response.Body, f, by}
	response.Body = w
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.watches[w] = time.Now()
}

// watching returns how many watches are open for so long, and how many of all are served by
// the server.
func (f *fleet) watching(since time.Duration, by *server) (old, served int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w, opened := range f.mu.watches {
		if time.Since(opened) >= since {
			old++
		}
		if w.by == by {
			served++
		}
	}
	return old, served
}

// client returns a client that speaks to the fleet.
func (f *fleet) client(t *testing.T) *versioned.Clientset {
	t.Helper()
	client, err := versioned.NewForConfig(&rest.Config{Host: "https://fleet", Transport: f, QPS: -1})
	require.NoError(t, err)
	return client
}

// put puts a server of the version into service, in the place of what was there.
func (f *fleet) put(t *testing.T, at int, v version) {
	t.Helper()
	process := v.program.Start(t, apiserver.Ours, f.etcd, v.flags...)
	s := &server{version: v, process: process, host: strings.TrimPrefix(process.Config.Host, "https://"), client: process.Connect(t).Transport}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.servers[at] = s
}

// end ends a server. One that is killed is in service until another one takes its place;
// otherwise no request comes once the server begins to end.
func (f *fleet) end(t *testing.T, at int, kill bool) {
	t.Helper()
	f.mu.Lock()
	s := f.mu.servers[at]
	if !kill {
		f.mu.servers[at] = nil
	}
	f.mu.Unlock()
	if kill {
		s.process.Kill()
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, s.process.Interrupt(ctx))
}

// are reports whether all servers in service but one are of the version.
func (f *fleet) are(v version, but int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, s := range f.mu.servers {
		if i != but && (s == nil || s.version.name != v.name) {
			return false
		}
	}
	return true
}
