// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// kind says what a range request to etcd is for.
type kind string

const (
	// versionRange asks for the resource's prefix as if it were an object's key:
	// for the revision in the answer's header.
	versionRange kind = "version"
	getRange     kind = "get"  // of one object
	listRange    kind = "list" // of objects with their values
	keysRange    kind = "keys" // of keys without values
)

// ranged is one range request and what came back.
type ranged struct {
	kind     kind
	revision int64 // 0: the latest
	returned int   // keys
	bytes    int   // of values
}

// counter stands between a client of etcd and the network: it counts the range
// requests for one resource, each attempt of a retried one by itself, and
// keeps back answers when a test wants that.
type counter struct {
	prefix string // of the resource's keys in etcd, with a slash at its end

	mu struct {
		sync.Mutex
		seen []*ranged
		// held is where the next version request's answer is kept back.
		held *held
		// frozen is closed when watches go on; nil while they are not stopped.
		frozen chan struct{}
	}
}

// held is one answer that is kept back.
type held struct {
	arrived chan struct{} // closed when etcd has answered
	release chan struct{} // for the test to close
}

func (c *counter) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.unary), grpc.WithChainStreamInterceptor(c.stream)}
}

// note counts a request, nil if it is not about the resource.
func (c *counter) note(req *etcdserverpb.RangeRequest) *ranged {
	key := string(req.Key)
	r := &ranged{revision: req.Revision}
	switch {
	case len(req.RangeEnd) == 0 && key == c.prefix:
		r.kind = versionRange
	case !strings.HasPrefix(key, c.prefix):
		return nil
	case len(req.RangeEnd) == 0:
		r.kind = getRange
	case req.KeysOnly:
		r.kind = keysRange
	default:
		r.kind = listRange
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.seen = append(c.mu.seen, r)
	return r
}

func (c *counter) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	request, ok := req.(*etcdserverpb.RangeRequest)
	if !ok {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	r := c.note(request)
	err := invoke(ctx, method, req, reply, cc, opts...)
	if r == nil || err != nil {
		return err
	}
	if h := c.answered(r, reply.(*etcdserverpb.RangeResponse)); h != nil {
		close(h.arrived)
		select {
		case <-h.release:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// answered notes an answer, or a part of it, and returns where to keep it back, if it is to be.
func (c *counter) answered(r *ranged, reply *etcdserverpb.RangeResponse) *held {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.returned += len(reply.GetKvs())
	for _, kv := range reply.GetKvs() {
		r.bytes += len(kv.Value)
	}
	if r.kind != versionRange {
		return nil
	}
	h := c.mu.held
	c.mu.held = nil
	return h
}

func (c *counter) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &countedStream{ClientStream: s, counter: c}, nil
}

// countedStream is a stream of answers to one range request, or of watches.
type countedStream struct {
	grpc.ClientStream
	counter *counter
	request *ranged // nil if it is not one for the resource
}

// SendMsg implements grpc.ClientStream.
func (s *countedStream) SendMsg(m any) error {
	if request, ok := m.(*etcdserverpb.RangeRequest); ok {
		s.request = s.counter.note(request)
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream.
func (s *countedStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	switch m := m.(type) {
	case *etcdserverpb.RangeStreamResponse:
		if s.request != nil {
			s.counter.answered(s.request, m.RangeResponse)
		}
	case *etcdserverpb.WatchResponse:
		return s.pass()
	}
	return nil
}

// pass returns when the watch may go on.
func (s *countedStream) pass() error {
	s.counter.mu.Lock()
	frozen := s.counter.mu.frozen
	s.counter.mu.Unlock()
	if frozen != nil {
		select {
		case <-frozen:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
	return nil
}

// hold keeps back the answer to the next version request.
func (c *counter) hold() *held {
	h := &held{arrived: make(chan struct{}), release: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.held = h
	return h
}

// freeze lets nothing more through that watches receive, until thaw is called.
func (c *counter) freeze() (thaw func()) {
	frozen := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.frozen = frozen
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.mu.frozen = nil
		close(frozen)
	}
}

// requests returns what was seen since the last call of reset.
func (c *counter) requests() []ranged {
	c.mu.Lock()
	defer c.mu.Unlock()
	requests := make([]ranged, len(c.mu.seen))
	for i, r := range c.mu.seen {
		requests[i] = *r
	}
	return requests
}

func (c *counter) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.seen = nil
}

// counts is how many requests of each kind there were since the last reset;
// kinds of which there were none are left out.
func (c *counter) counts() map[kind]int {
	counts := map[kind]int{}
	for _, r := range c.requests() {
		counts[r.kind]++
	}
	return counts
}
