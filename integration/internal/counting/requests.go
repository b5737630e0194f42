// SPDX-License-Identifier: Apache-2.0

// Package counting counts what a cache asks its storage for, for tests: the range
// requests that an etcd client sends, and the cache's own metrics.
package counting

import (
	"context"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// Kind says what a range request is for.
type Kind string

// The kinds of range requests.
const (
	// Version asks for the resource's prefix as if it were an object's key, or
	// counts keys: for the revision in the answer's header.
	Version Kind = "version"
	// KeyVersions asks for the versions of single keys, in one request.
	KeyVersions Kind = "key versions"
	Object      Kind = "object"
	List        Kind = "list" // of objects with their values
	Keys        Kind = "keys" // without values
)

// Request is one range request and its answer.
type Request struct {
	Kind     Kind
	Revision int64 // that was asked for; 0: the latest
	Returned int   // keys
	Bytes    int   // of values
}

// Requests stands between a client of etcd and the network: it counts the range
// requests for one resource, each attempt of a retried one by itself. Requests
// keeps back answers, and what watches receive, when a test wants that. Its
// methods are safe for concurrent use.
type Requests struct {
	prefix string
	mu     struct {
		sync.Mutex
		seen []*Request
		// held is where the next version request's answer is kept back.
		held *Held
		// frozen is closed when watches go on; nil: they do.
		frozen chan struct{}
	}
}

// Held is one answer that is kept back.
type Held struct {
	Arrived chan struct{} // closed when storage has answered
	Release chan struct{} // for the test to close
}

// Of counts the requests for the keys below prefix, which ends with a slash.
func Of(prefix string) *Requests { return &Requests{prefix: prefix} }

// Prefix is the prefix of the keys whose requests are counted.
func (r *Requests) Prefix() string { return r.prefix }

// DialOptions are for the client whose requests are counted.
func (r *Requests) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(r.unary), grpc.WithChainStreamInterceptor(r.stream)}
}

// Seen returns the requests since the last call of Reset.
func (r *Requests) Seen() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := make([]Request, len(r.mu.seen))
	for i, request := range r.mu.seen {
		seen[i] = *request
	}
	return seen
}

// Counts is how many requests of each kind there were since the last call of Reset;
// kinds of which there were none are left out.
func (r *Requests) Counts() map[Kind]int {
	counts := map[Kind]int{}
	for _, request := range r.Seen() {
		counts[request.Kind]++
	}
	return counts
}

// Bytes is how many bytes of values came back since the last call of Reset.
func (r *Requests) Bytes() int {
	n := 0
	for _, request := range r.Seen() {
		n += request.Bytes
	}
	return n
}

// Reset forgets all requests.
func (r *Requests) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.seen = nil
}

// Hold keeps back the answer to the next version request.
func (r *Requests) Hold() *Held {
	h := &Held{Arrived: make(chan struct{}), Release: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.held = h
	return h
}

// Freeze lets nothing more through that watches receive, until thaw is called.
func (r *Requests) Freeze() (thaw func()) {
	frozen := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.frozen = frozen
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.frozen = nil
		close(frozen)
	})
}

// note counts a request. note returns nil for one that is not about the
// resource.
func (r *Requests) note(sent *etcdserverpb.RangeRequest) *Request {
	key := string(sent.Key)
	if !strings.HasPrefix(key, r.prefix) {
		return nil
	}
	request := &Request{Revision: sent.Revision, Kind: List}
	single := len(sent.RangeEnd) == 0
	switch {
	case sent.CountOnly || single && key == r.prefix:
		request.Kind = Version
	case single && sent.KeysOnly:
		request.Kind = KeyVersions
	case single:
		request.Kind = Object
	case sent.KeysOnly:
		request.Kind = Keys
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.seen = append(r.mu.seen, request)
	return request
}

// answered notes an answer, or a part of it, and returns where to keep it back, if
// the test wants that.
func (r *Requests) answered(request *Request, reply *etcdserverpb.RangeResponse) *Held {
	r.mu.Lock()
	defer r.mu.Unlock()
	request.Returned += len(reply.GetKvs())
	for _, kv := range reply.GetKvs() {
		request.Bytes += len(kv.Value)
	}
	if request.Kind != Version && request.Kind != KeyVersions {
		return nil
	}
	h := r.mu.held
	r.mu.held = nil
	return h
}

func (r *Requests) unary(ctx context.Context, method string, sent, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var request *Request
	switch sent := sent.(type) {
	case *etcdserverpb.RangeRequest:
		request = r.note(sent)
	case *etcdserverpb.TxnRequest:
		if asked := sent.GetSuccess(); len(asked) > 0 && len(sent.GetCompare()) == 0 && asked[0].GetRequestRange() != nil {
			request = r.note(asked[0].GetRequestRange()) // and others like it
		}
	}
	err := invoke(ctx, method, sent, reply, cc, opts...)
	if request == nil || err != nil {
		return err
	}
	answer, _ := reply.(*etcdserverpb.RangeResponse)
	if h := r.answered(request, answer); h != nil {
		close(h.Arrived)
		select {
		case <-h.Release:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (r *Requests) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &stream{ClientStream: s, requests: r}, nil
}

// stream is a stream of answers to one range request, or of watches.
type stream struct {
	grpc.ClientStream
	requests *Requests
	request  *Request // nil if it is not one for the resource
}

// SendMsg implements grpc.ClientStream.
func (s *stream) SendMsg(m any) error {
	if sent, ok := m.(*etcdserverpb.RangeRequest); ok {
		s.request = s.requests.note(sent)
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream.
func (s *stream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	switch m := m.(type) {
	case *etcdserverpb.RangeStreamResponse:
		if s.request != nil {
			s.requests.answered(s.request, m.RangeResponse)
		}
	case *etcdserverpb.WatchResponse:
		return s.pass()
	}
	return nil
}

// pass returns when the watch may go on.
func (s *stream) pass() error {
	s.requests.mu.Lock()
	frozen := s.requests.mu.frozen
	s.requests.mu.Unlock()
	if frozen != nil {
		select {
		case <-frozen:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
	return nil
}
