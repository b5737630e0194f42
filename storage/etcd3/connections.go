// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// streamsPerConnection is the minimum that HTTP/2 recommends servers to allow, and the limit of
	// most proxies.
	streamsPerConnection = 100
	openTimeout          = time.Second
)

// watchConnections carry only watch streams, because gRPC blocks calls while a connection has as
// many streams as the server allows. If all connections to an endpoint are full, we add one.
type watchConnections struct {
	endpoints []string
	logger    *zap.Logger
	dial      func(endpoint string) (*grpc.ClientConn, error) // set before the first watch

	mu struct {
		sync.Mutex
		conns []*watchConnection
		next  int // endpoint of the next shared stream
		limit int // of streams per connection
	}
}

// watchConnection is guarded by watchConnections.mu.
type watchConnection struct {
	*grpc.ClientConn
	endpoint      string
	taken, opened int       // streams, with and without those being opened
	last          time.Time // when a stream was last opened
}

// intercept is a grpc.StreamClientInterceptor that opens watch streams on the connections, trying
// the endpoints in turn.
//
// A single watch's own stream goes to another endpoint than the store's last one, which often does
// not answer. It ends with the watch, because the client itself would keep a stream whose server
// never confirmed the watch, and reopen it without a watch if the connection is lost.
func (c *watchConnections) intercept(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if method != etcdserverpb.Watch_Watch_FullMethodName {
		return streamer(ctx, desc, cc, method, opts...)
	}
	next, life := &c.mu.next, ctx
	if own, ok := ctx.Value(ownStreamKey{}).(*storeWatch); ok {
		next, life = &own.store.nextEndpoint, own.life
	}
	for tries := 1; ; tries++ {
		conn, err := c.take(next)
		if err != nil {
			return nil, err
		}
		opening, cancel := context.WithCancel(ctx)
		detach := context.AfterFunc(life, cancel)
		timer := time.AfterFunc(openTimeout, cancel)
		stream, err := streamer(opening, desc, conn.ClientConn, method, opts...)
		inTime := timer.Stop()
		if err == nil && inTime {
			c.count(conn, 0, 1)
			context.AfterFunc(stream.Context(), func() { c.count(conn, -1, -1) })
			return stream, nil
		}
		detach()
		cancel()
		if !inTime {
			err = status.Errorf(codes.Unavailable, "no stream was opened within %v", openTimeout)
			if c.full(conn) {
				tries = 0
			}
		}
		c.count(conn, -1, 0)
		if life.Err() != nil || ctx.Err() != nil || tries == len(c.endpoints) {
			return nil, err
		}
	}
}

func (c *watchConnections) take(next *int) (*watchConnection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	endpoint := c.endpoints[*next%len(c.endpoints)]
	*next++
	i := slices.IndexFunc(c.mu.conns, func(conn *watchConnection) bool { return conn.endpoint == endpoint && conn.taken < c.mu.limit })
	if i < 0 {
		conn, err := c.dial(endpoint)
		if err != nil {
			return nil, err
		}
		i, c.mu.conns = len(c.mu.conns), append(c.mu.conns, &watchConnection{ClientConn: conn, endpoint: endpoint})
	}
	c.mu.conns[i].taken++
	return c.mu.conns[i], nil
}

func (c *watchConnections) count(conn *watchConnection, taken, opened int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn.taken += taken
	conn.opened += opened
	if opened > 0 {
		conn.last = time.Now()
	}
}

// full reports whether a connection that timed out opening a stream is at the server's limit, which
// it then applies to all connections. It is if it carries streams, none opened recently.
func (c *watchConnections) full(conn *watchConnection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn.opened == 0 || time.Since(conn.last) < openTimeout/2 {
		return false
	}
	if c.mu.limit == streamsPerConnection {
		c.logger.Warn("This etcd, or a proxy before it, allows few streams on a connection, so that watches need more connections. To have fewer, raise etcd's --max-concurrent-streams or the proxy's limit",
			zap.Int("streams", conn.opened), zap.Strings("endpoints", c.endpoints))
	}
	c.mu.limit = min(c.mu.limit, conn.opened)
	return true
}

// close closes the connections. Caller must ensure that nothing opens another stream.
func (c *watchConnections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.mu.conns {
		_ = conn.Close()
	}
}
