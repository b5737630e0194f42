// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"context"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// asked is what a range request is for.
type asked string

const (
	askedVersion asked = "version" // the revision in the answer's header
	askedObject  asked = "object"
	askedList    asked = "list" // objects with their values
	askedKeys    asked = "keys" // keys without values
)

// counter stands between a client and kine: it counts the range requests for
// the keys under prefix, and lets no watch through while it is frozen.
type counter struct {
	prefix string
	mu     struct {
		sync.Mutex
		ranges map[asked]int
		// values is how many bytes of values came back.
		values int
		frozen chan struct{} // closed when watches go on; nil: they do
	}
}

func newCounter(prefix string) *counter {
	c := &counter{prefix: prefix}
	c.mu.ranges = map[asked]int{}
	return c
}

func (c *counter) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.unary), grpc.WithChainStreamInterceptor(c.stream)}
}

// reset returns what was counted, and begins anew.
func (c *counter) reset() (ranges map[asked]int, values int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ranges, values = c.mu.ranges, c.mu.values
	c.mu.ranges, c.mu.values = map[asked]int{}, 0
	return ranges, values
}

func (c *counter) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if request, ok := req.(*etcdserverpb.RangeRequest); ok && err == nil && strings.HasPrefix(string(request.Key), c.prefix) {
		c.note(request, reply.(*etcdserverpb.RangeResponse))
	}
	return err
}

func (c *counter) note(request *etcdserverpb.RangeRequest, reply *etcdserverpb.RangeResponse) {
	kind := askedList
	switch {
	case request.CountOnly, len(request.RangeEnd) == 0 && string(request.Key) == c.prefix:
		kind = askedVersion
	case len(request.RangeEnd) == 0:
		kind = askedObject
	case request.KeysOnly:
		kind = askedKeys
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.ranges[kind]++
	for _, kv := range reply.Kvs {
		c.mu.values += len(kv.Value)
	}
}

func (c *counter) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil || method != etcdserverpb.Watch_Watch_FullMethodName {
		return s, err
	}
	return &freezableStream{ClientStream: s, counter: c}, nil
}

// freeze lets nothing more through that watches receive, until thaw is called.
func (c *counter) freeze() (thaw func()) {
	frozen := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.frozen = frozen
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.mu.frozen = nil
		close(frozen)
	})
}

// freezableStream is a stream of watches.
type freezableStream struct {
	grpc.ClientStream
	counter *counter
}

// RecvMsg implements grpc.ClientStream.
func (s *freezableStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
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
