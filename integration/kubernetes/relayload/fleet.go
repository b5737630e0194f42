// SPDX-License-Identifier: Apache-2.0

//go:build unix

package relayload

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math"
	"net"
	"net/http"
	"net/rpc"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Fleet is informers, and the methods by which another process has them do something.
type Fleet struct {
	server string
	pods   map[string]int // each pod's number
	states []*state
	ctx    context.Context

	lists, requests, refused, failed atomic.Int64
	first                            atomic.Pointer[string] // the first error
	latencies                        histogram
}

// ServeFleet is a process with informers until its standard input ends.
func ServeFleet(ctx context.Context) error {
	server := rpc.NewServer()
	if err := server.Register(&Fleet{ctx: ctx}); err != nil {
		return err
	}
	server.ServeConn(stdio{os.Stdin, os.Stdout})
	return nil
}

type stdio struct {
	*os.File
	out *os.File
}

func (s stdio) Write(p []byte) (int, error) { return s.out.Write(p) }

// Orders is what a fleet is started with.
type Orders struct {
	Server, Token string
	CA            []byte
	// Informers is how many light informers there are, PerConnection how many of them
	// share a connection, and Controls how many informers of client-go's there are.
	Informers, PerConnection, Controls int
	Pods                               map[string]int
}

// None is no argument, or no answer.
type None struct{}

// Start starts all informers.
func (f *Fleet) Start(o Orders, _ *None) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(o.CA) {
		return errors.New("no authority")
	}
	f.server, f.pods = o.Server, o.Pods
	var client *http.Client
	for i := range o.Informers {
		if i%o.PerConnection == 0 {
			client = &http.Client{Transport: f.counted(o.Token)(&http.Transport{
				TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, TLSHandshakeTimeout: time.Minute,
				// As client-go: a connection that is dead is noticed. Thousands of streams
				// with client-go's 4 MB would not fit one machine's memory.
				HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, MaxReceiveBufferPerStream: 1 << 20},
			})}
		}
		l := &light{fleet: f, client: client}
		l.versions = make([]uint64, len(o.Pods))
		f.states = append(f.states, &l.state)
		go l.run(f.ctx) // ends with the process
	}
	for range o.Controls {
		s := &state{versions: make([]uint64, len(o.Pods))}
		f.states = append(f.states, s)
		if err := f.control(s, o); err != nil {
			return err
		}
	}
	return nil
}

// counted counts requests.
func (f *Fleet) counted(token string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			query := r.URL.Query()
			f.requests.Add(1)
			if query.Get("watch") != "true" || query.Get("sendInitialEvents") == "true" {
				f.lists.Add(1)
			}
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			response, err := next.RoundTrip(r)
			switch {
			case err != nil:
				f.failed.Add(1)
			case response.StatusCode == http.StatusTooManyRequests:
				f.refused.Add(1)
			case response.StatusCode != http.StatusOK && response.StatusCode != http.StatusGone:
				f.note(errors.New(response.Status))
			}
			return response, err
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// control starts an informer of client-go's.
func (f *Fleet) control(s *state, o Orders) error {
	config := &rest.Config{
		Host: o.Server, BearerToken: o.Token, TLSClientConfig: rest.TLSClientConfig{CAData: o.CA}, QPS: -1, WrapTransport: f.counted(""),
		// A connection of its own. JSON is the default of a rest.Config.
		Dial: (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	informer := informers.NewSharedInformerFactory(client, 0).Core().V1().Pods().Informer()
	take := func(object any, event bool) {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return
		}
		version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
		if number, known := f.pods[pod.Name]; known && err == nil {
			s.set(number, version)
		}
		if event {
			f.delivered(s, pod.Annotations[writtenKey])
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(object any, _ bool) { take(object, false) },
		UpdateFunc: func(_, object any) { take(object, true) },
	})
	if err != nil {
		return err
	}
	err = informer.SetTransform(func(object any) (any, error) { // what is not used needs no memory
		if pod, ok := object.(*corev1.Pod); ok {
			pod.Spec, pod.Status, pod.ManagedFields = corev1.PodSpec{}, corev1.PodStatus{}, nil
		}
		return object, nil
	})
	if err != nil {
		return err
	}
	go informer.RunWithContext(f.ctx) // this and the next end with the process
	go func() { s.synced.Store(cache.WaitForCacheSync(f.ctx.Done(), registration.HasSynced)) }()
	return nil
}

// delivered notes an event that is not an initial one.
func (f *Fleet) delivered(s *state, written string) {
	at, err := strconv.ParseInt(written, 10, 64)
	if err != nil {
		return
	}
	s.newest.Store(max(at, s.newest.Load())) // only the informer's goroutine stores
	f.latencies.add(time.Since(time.Unix(0, at)))
}

func (f *Fleet) note(err error) {
	text := err.Error()
	f.first.CompareAndSwap(nil, &text)
}

// Sight is what a fleet has done since it was started, or since the histogram was emptied.
type Sight struct {
	// Synced is how many informers have had a whole state, Since how many have had an
	// event of a change after the time that was asked for.
	Synced, Since                    int
	Lists, Requests, Refused, Failed int64
	Events                           int64
	P50, P99                         time.Duration
	Error                            string // the first
}

// Look is the question for a Sight.
type Look struct {
	Since time.Time
	Empty bool // the histogram
}

// See tells what the fleet has done.
func (f *Fleet) See(l Look, s *Sight) error {
	for _, i := range f.states {
		if i.synced.Load() {
			s.Synced++
			if i.newest.Load() > l.Since.UnixNano() {
				s.Since++
			}
		}
	}
	s.Lists, s.Requests, s.Refused, s.Failed = f.lists.Load(), f.requests.Load(), f.refused.Load(), f.failed.Load()
	s.Events, s.P50, s.P99 = f.latencies.read(l.Empty)
	if first := f.first.Load(); first != nil {
		s.Error = *first
	}
	return nil
}

// Differ tells how many of the informers that have synced have another state.
func (f *Fleet) Differ(want []uint64, wrong *int) error {
	for _, s := range f.states {
		if s.synced.Load() && s.wrong(want) {
			*wrong++
		}
	}
	return nil
}

// histogram counts durations in classes that are five hundredths wide.
type histogram struct{ classes [600]atomic.Int64 }

const class = 1.05

func (h *histogram) add(d time.Duration) {
	i := int(math.Log(max(1, float64(d)/float64(time.Microsecond))) / math.Log(class))
	h.classes[min(i, len(h.classes)-1)].Add(1)
}

// read returns the number of durations, the median and the 99th percentile.
func (h *histogram) read(empty bool) (count int64, p50, p99 time.Duration) {
	var counts [len(h.classes)]int64
	for i := range h.classes {
		if counts[i] = h.classes[i].Load(); empty {
			counts[i] = h.classes[i].Swap(0)
		}
		count += counts[i]
	}
	at := func(share float64) time.Duration {
		left := int64(share * float64(count))
		for i, n := range counts {
			if left -= n; left < 0 {
				return time.Duration(math.Pow(class, float64(i)+0.5) * float64(time.Microsecond))
			}
		}
		return 0
	}
	return count, at(0.5), at(0.99)
}
