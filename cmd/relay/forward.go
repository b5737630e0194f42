// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
)

// shutdownWrites is for how long a client may take nothing of its response once the server
// shuts down.
const shutdownWrites = 5 * time.Second

// room bounds how many forwarded requests there are at a time, watches among them: of all
// users, and of one.
type room struct {
	all, one int

	mu    sync.Mutex
	total int
	users map[string]int

	refused prometheus.Counter
}

func newRoom(all int) (*room, error) {
	r := &room{all: all, one: max(1, all/4), users: map[string]int{}}
	r.refused = prometheus.NewCounter(prometheus.CounterOpts{Name: "watchcache_relay_refused_forwards_total", Help: "Requests that were not forwarded to the upstream, because too many were open."})
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "watchcache_relay_forwarded_requests", Help: "Requests that are being forwarded to the upstream, watches among them."}, func() float64 {
		r.mu.Lock()
		defer r.mu.Unlock()
		return float64(r.total)
	})
	for _, c := range []prometheus.Collector{r.refused, open} {
		if err := legacyregistry.Registerer().Register(c); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// enter returns false if there is no room for a request of the user. leave must be called
// after it.
func (r *room) enter(user string) (leave func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total >= r.all || r.users[user] >= r.one {
		r.refused.Inc()
		return nil, false
	}
	r.total++
	r.users[user]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.total--
		if r.users[user]--; r.users[user] == 0 {
			delete(r.users, user)
		}
	}, true
}

// forwarder sends requests to the upstream as they are. Each has a connection of HTTP/1.1 for
// as long as it lasts: what its client does not read stays in the kernel's buffers, and holds
// up neither the caches nor another request. HTTP/1.1 also has upgrades, as of exec.
type forwarder struct {
	front *front
	room  *room
	proxy *httputil.ReverseProxy
}

// forwarder makes a forwarder that leaves out the client's headers of these prefixes.
func (f *front) forwarder(config *rest.Config, in *room, without ...string) (*forwarder, error) {
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"}
	target, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	return &forwarder{f, in, &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, // at once: events of watches
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			for name := range r.Out.Header {
				if slices.ContainsFunc(without, func(prefix string) bool { return hasPrefix(name, prefix) }) {
					r.Out.Header.Del(name)
				}
			}
		},
		ModifyResponse: func(response *http.Response) error {
			if _, upgraded := response.Body.(io.Writer); !upgraded {
				response.Body = ending{response.Body, response.Request.Context()}
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			f.refuse(w, r, apierrors.NewTimeoutError(fmt.Sprintf("the upstream of this relay gives no answer: %v", err), 1))
		},
	}}, nil
}

// ServeHTTP implements http.Handler. A request that lasts ends when the server shuts down.
func (f *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := ""
	if user, ok := request.UserFrom(r.Context()); ok {
		name = user.GetName()
	}
	leave, ok := f.room.enter(name)
	if !ok {
		f.front.refuse(w, r, apierrors.NewTooManyRequests("this relay forwards too many requests to its upstream, of this user or of all: try again later", 1))
		return
	}
	defer leave()
	if info, ok := request.RequestInfoFrom(r.Context()); ok && longRunning(r, info) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(f.front.server.ctx, cancel)()
		r = r.WithContext(ctx)
	}
	f.proxy.ServeHTTP(w, r)
}

// ending is the body of a response that ends without an error when its time is over.
type ending struct {
	io.ReadCloser
	ctx context.Context
}

// Read implements io.Reader.
func (e ending) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if err != nil && e.ctx.Err() != nil {
		err = io.EOF
	}
	return n, err
}

// endWrites ends writes to a client that takes nothing, within a time after ctx. done must be
// called before the handler returns.
func endWrites(ctx context.Context, w http.ResponseWriter, within time.Duration) (done func()) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(within)) // HTTP/1 and 2 have it
	})
	return func() {
		if !stop() {
			<-ended
		}
	}
}

func hasPrefix(text, prefix string) bool { return strings.HasPrefix(strings.ToLower(text), prefix) }
