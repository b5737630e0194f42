// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
)

// racks is how many there are; each device is in one.
const racks = 250

// Informers are client-go's reflectors of the devices of one rack each, in this
// process. They share the connections to one server at a time, and keep no objects.
// Their goroutines end with Close, which awaits them.
type Informers struct {
	server  atomic.Pointer[connected]
	all     []*informer
	cancel  context.CancelFunc
	running sync.WaitGroup
	// lists counts the lists, and the watches that begin with the state; listed their
	// bytes, decompressed.
	lists, listed atomic.Int64
}

// connected is the connections to a server.
type connected struct {
	clients   versioned.Interface
	transport http.RoundTripper
}

// errNoServer is what informers get while there is no server.
var errNoServer = fmt.Errorf("no server: %w", syscall.ECONNREFUSED)

// NewInformers starts n reflectors, which wait for a server. The caller closes them.
func NewInformers(n int) *Informers {
	ctx, cancel := context.WithCancel(context.Background())
	f := &Informers{cancel: cancel}
	for i := range n {
		one := &informer{of: f, selector: fmt.Sprintf("fleet.example.com/rack=rack-%03d", i%racks)}
		r := cache.NewReflectorWithOptions(&cache.ListWatch{ListWithContextFunc: one.list, WatchFuncWithContext: one.watch},
			&fleetv1.Device{}, one, cache.ReflectorOptions{})
		f.all = append(f.all, one)
		f.running.Go(func() { r.RunWithContext(ctx) })
	}
	return f
}

// Close ends the reflectors and their connections.
func (f *Informers) Close() {
	f.cancel()
	f.Disconnect()
	f.running.Wait()
}

// Connect has the informers speak to a server from now on.
func (f *Informers) Connect(s *Server) error {
	config := rest.CopyConfig(s.child.Config)
	dialer := net.Dialer{} // transports are shared by configurations with one dialer
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, address)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	next := &connected{transport: client.Transport}
	client.Transport = countingTransport{client.Transport}
	if next.clients, err = versioned.NewForConfigAndClient(config, client); err != nil {
		return err
	}
	f.server.Store(next)
	return nil
}

// Disconnect leaves the informers without a server. Watches that are open end with
// their server.
func (f *Informers) Disconnect() {
	if last := f.server.Swap(nil); last != nil {
		utilnet.CloseIdleConnectionsFor(last.transport)
	}
	for _, one := range f.all {
		one.opened.Store(0)
	}
}

// Live is how many have a watch, and all that they need before it, and since when the
// last one has.
func (f *Informers) Live() (n int, last time.Time) {
	var latest int64
	for _, one := range f.all {
		if at := one.opened.Load(); at != 0 && !one.behind.Load() {
			n++
			latest = max(latest, at)
		}
	}
	return n, time.Unix(0, latest)
}

// Len is how many informers there are.
func (f *Informers) Len() int { return len(f.all) }

// Listed is how often informers have listed, and how many bytes.
func (f *Informers) Listed() (lists, bytes int64) { return f.lists.Load(), f.listed.Load() }

// informer is the storage's and the client's side of one reflector.
type informer struct {
	of       *Informers
	selector string
	// opened is when the last watch was opened, 0 if there is none. behind: the state
	// is on its way.
	opened atomic.Int64
	behind atomic.Bool
}

func (i *informer) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	s := i.of.server.Load()
	if s == nil {
		return nil, errNoServer
	}
	i.of.lists.Add(1)
	i.behind.Store(true)
	opts.LabelSelector = i.selector
	return s.clients.FleetV1().Devices("").List(i.named(ctx), opts)
}

func (i *informer) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	s := i.of.server.Load()
	if s == nil {
		return nil, errNoServer
	}
	if opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		i.of.lists.Add(1) // the state as a watch
		i.behind.Store(true)
	}
	opts.LabelSelector = i.selector
	w, err := s.clients.FleetV1().Devices("").Watch(i.named(ctx), opts)
	if err == nil && i.of.server.Load() == s {
		i.opened.Store(time.Now().UnixNano())
	}
	return w, err
}

// named says whose request one with the context is.
func (i *informer) named(ctx context.Context) context.Context {
	return context.WithValue(ctx, informerKey{}, i)
}

type informerKey struct{}

// Replace implements cache.ReflectorStore: the whole state has come.
func (i *informer) Replace([]any, string) error {
	i.behind.Store(false)
	return nil
}

// Add implements cache.ReflectorStore.
func (i *informer) Add(any) error { return nil }

// Update implements cache.ReflectorStore.
func (i *informer) Update(any) error { return nil }

// Delete implements cache.ReflectorStore.
func (i *informer) Delete(any) error { return nil }

// Resync implements cache.ReflectorStore.
func (i *informer) Resync() error { return nil }

// countingTransport counts the bytes of lists, and of watches until they have brought
// the state that they begin with.
type countingTransport struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if by, ok := r.Context().Value(informerKey{}).(*informer); ok && err == nil {
		response.Body = countedBody{response.Body, by}
	}
	return response, err
}

type countedBody struct {
	io.ReadCloser
	by *informer
}

// Read implements io.Reader.
func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.by.behind.Load() {
		b.by.of.listed.Add(int64(n))
	}
	return n, err
}

// HeapWatch looks at a server's heap until it is told to end. Its goroutine ends with
// End, which awaits it.
type HeapWatch struct {
	cancel context.CancelFunc
	done   chan struct{}
	seen   []Heap
}

// heapEvery is how often a heap is looked at.
const heapEvery = 250 * time.Millisecond

// WatchHeap begins to look at the server's heap.
func (s *Server) WatchHeap(ctx context.Context) *HeapWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &HeapWatch{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		ticker := time.NewTicker(heapEvery)
		defer ticker.Stop()
		for {
			// A server that is too busy to answer is asked again.
			if h, err := s.Heap(ctx); err == nil {
				w.seen = append(w.seen, h)
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return w
}

// End ends the looking, and returns the highest of what collections have found in use,
// and of what was in use with garbage, in bytes.
func (w *HeapWatch) End() (live, objects int64, err error) {
	w.cancel()
	<-w.done
	if len(w.seen) == 0 {
		return 0, 0, errors.New("the server has never said how large its heap is")
	}
	by := func(of func(Heap) int64) int64 {
		return of(slices.MaxFunc(w.seen, func(a, b Heap) int { return int(of(a) - of(b)) }))
	}
	return by(func(h Heap) int64 { return h.Live }), by(func(h Heap) int64 { return h.Objects }), nil
}
