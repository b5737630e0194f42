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

// shutdownWrites is how long a response write may block after shutdown began.
const shutdownWrites = 5 * time.Second

// room limits concurrent forwarded requests, including watches, in total and per user.
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

// enter returns false if there is no room. Otherwise the caller must call leave.
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

// forwarder is a proxy to the upstream. Each request has its own HTTP/1.1 connection, so that
// unread data stays in kernel buffers and delays neither the caches nor other requests. HTTP/1.1
// also supports upgrades, e.g. for exec.
type forwarder struct {
	front *front
	room  *room
	proxy *httputil.ReverseProxy
}

// forwarder returns a forwarder without the client headers of some prefixes.
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
		Transport: transport, FlushInterval: -1, // flush watch events immediately
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

// ServeHTTP implements http.Handler. Long-running requests end when the server shuts down.
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

// ending is a response body that ends without an error when its context does.
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

// endWrites sets a write deadline when ctx ends, for clients that don't read. Call done before the
// handler returns.
func endWrites(ctx context.Context, w http.ResponseWriter, within time.Duration) (done func()) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(within)) // works for HTTP/1 and HTTP/2
	})
	return func() {
		if !stop() {
			<-ended
		}
	}
}

func hasPrefix(text, prefix string) bool { return strings.HasPrefix(strings.ToLower(text), prefix) }
