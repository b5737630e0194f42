// SPDX-License-Identifier: Apache-2.0

// Package counting counts what a cache asks its storage for, for tests: the range
// requests that an etcd client sends, and the cache's own metrics.
package counting

import (
	"context"
	"maps"
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

// Requests stands between a client of etcd and the network: it counts the range
// requests for one resource, each attempt of a retried one by itself. Its methods are
// safe for concurrent use.
type Requests struct {
	prefix string
	mu     struct {
		sync.Mutex
		counts map[Kind]int
		bytes  int
	}
}

// Of counts the requests for the keys below prefix, which ends with a slash.
func Of(prefix string) *Requests {
	r := &Requests{prefix: prefix}
	r.Reset()
	return r
}

// DialOptions are for the client whose requests are counted.
func (r *Requests) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(r.unary), grpc.WithChainStreamInterceptor(r.stream)}
}

// Counts is how many requests of each kind there were since the last call of Reset;
// kinds of which there were none are left out.
func (r *Requests) Counts() map[Kind]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.mu.counts)
}

// Bytes is how many bytes of values came back since the last call of Reset.
func (r *Requests) Bytes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.bytes
}

// Reset forgets all requests.
func (r *Requests) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.counts, r.mu.bytes = map[Kind]int{}, 0
}

// note counts a request, and tells whether it is about the resource.
func (r *Requests) note(sent *etcdserverpb.RangeRequest) bool {
	key := string(sent.Key)
	if !strings.HasPrefix(key, r.prefix) {
		return false
	}
	kind, single := List, len(sent.RangeEnd) == 0
	switch {
	case sent.CountOnly || single && key == r.prefix:
		kind = Version
	case single && sent.KeysOnly:
		kind = KeyVersions
	case single:
		kind = Object
	case sent.KeysOnly:
		kind = Keys
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.counts[kind]++
	return true
}

// answered counts the bytes of an answer, or of a part of it.
func (r *Requests) answered(reply *etcdserverpb.RangeResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, kv := range reply.GetKvs() {
		r.mu.bytes += len(kv.Value)
	}
}

func (r *Requests) unary(ctx context.Context, method string, sent, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	counted := false
	switch sent := sent.(type) {
	case *etcdserverpb.RangeRequest:
		counted = r.note(sent)
	case *etcdserverpb.TxnRequest:
		if asked := sent.GetSuccess(); len(asked) > 0 && len(sent.GetCompare()) == 0 && asked[0].GetRequestRange() != nil {
			counted = r.note(asked[0].GetRequestRange()) // and others like it
		}
	}
	err := invoke(ctx, method, sent, reply, cc, opts...)
	if answer, ok := reply.(*etcdserverpb.RangeResponse); ok && counted {
		r.answered(answer)
	}
	return err
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
	counted  bool
}

// SendMsg implements grpc.ClientStream.
func (s *stream) SendMsg(m any) error {
	if sent, ok := m.(*etcdserverpb.RangeRequest); ok {
		s.counted = s.requests.note(sent)
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream.
func (s *stream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if part, ok := m.(*etcdserverpb.RangeStreamResponse); ok && s.counted && err == nil {
		s.requests.answered(part.RangeResponse)
	}
	return err
}
