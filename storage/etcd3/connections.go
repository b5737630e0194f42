// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

const (
	// streamsPerConnection is the least number of streams that HTTP/2 recommends servers
	// to allow, which is also what most proxies allow.
	streamsPerConnection = 100
	// openTimeout bounds opening a stream on one connection: a connection that is being
	// made, or that has as many streams as the server allows, makes the stream wait.
	openTimeout = time.Second
)

// watchConnections are the connections that carry watch streams and nothing else: gRPC
// makes a request wait while its connection has as many streams as the server allows, and
// watches do not end. Each connection is to one endpoint, and a new one is made only when
// all others to the endpoint are full.
type watchConnections struct {
	endpoints []string
	logger    *zap.Logger
	// dial is set before the first watch.
	dial func(endpoint string) (*grpc.ClientConn, error)

	mu struct {
		sync.Mutex
		closed bool
		conns  [][]*watchConnection // by endpoint
		next   uint64               // the endpoint of the next stream that is no store's own
		limit  int                  // of the streams on a connection
	}
}

// watchConnection is guarded by watchConnections.mu.
type watchConnection struct {
	*grpc.ClientConn
	taken  int       // streams that are open or being opened
	opened int       // streams that are open
	last   time.Time // when the last one was opened
}

func newWatchConnections(endpoints []string, lg *zap.Logger) *watchConnections {
	c := &watchConnections{endpoints: endpoints, logger: lg}
	c.mu.conns = make([][]*watchConnection, len(endpoints))
	c.mu.limit = streamsPerConnection
	return c
}

// intercept is a grpc.StreamClientInterceptor that opens watch streams on the
// connections. It tries the endpoints one after the other.
//
// A stream that belongs to one watch begins with the endpoint after that of the store's
// last one: in most cases it is opened because that member does not answer. It ends when
// the watch ends: the client itself would keep a stream whose server has never confirmed
// the watch, and, when the connection is lost, open the stream again without a watch on it.
func (c *watchConnections) intercept(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if method != etcdserverpb.Watch_Watch_FullMethodName {
		return streamer(ctx, desc, cc, method, opts...)
	}
	next := &c.mu.next
	own, _ := ctx.Value(ownStreamKey{}).(*storeWatch)
	if own != nil {
		next = &own.store.nextEndpoint
	}
	var err error
	for range c.endpoints {
		c.mu.Lock()
		endpoint := int(*next % uint64(len(c.endpoints)))
		*next++
		c.mu.Unlock()
		for full := true; full; {
			var stream grpc.ClientStream
			stream, full, err = c.open(ctx, own, endpoint, func(ctx context.Context, cc *grpc.ClientConn) (grpc.ClientStream, error) {
				return streamer(ctx, desc, cc, method, opts...)
			})
			if err == nil || ctx.Err() != nil {
				return stream, err
			}
		}
	}
	return nil, err
}

// open opens a stream on a connection to the endpoint. full reports that the connection
// turned out to have no room, so that another one does.
func (c *watchConnections) open(ctx context.Context, own *storeWatch, endpoint int, open func(context.Context, *grpc.ClientConn) (grpc.ClientStream, error)) (_ grpc.ClientStream, full bool, _ error) {
	conn, err := c.take(endpoint)
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	detach := func() bool { return true }
	if own != nil {
		detach = context.AfterFunc(own.life, cancel)
	}
	timer := time.AfterFunc(openTimeout, cancel)
	stream, err := open(ctx, conn.ClientConn)
	inTime := timer.Stop()
	if err == nil && inTime {
		c.mu.Lock()
		conn.opened++
		conn.last = time.Now()
		c.mu.Unlock()
		context.AfterFunc(stream.Context(), func() { c.release(conn, 1) })
		return stream, false, nil
	}
	detach()
	cancel()
	if !inTime {
		full = c.learn(conn)
		err = status.Error(codes.Unavailable, fmt.Sprintf("no stream was opened at %s within %v", shown(c.endpoints[endpoint]), openTimeout))
	}
	c.release(conn, 0)
	return nil, full, err
}

// take counts one stream more on the first connection with room.
func (c *watchConnections) take(endpoint int) (*watchConnection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, status.Error(codes.Canceled, ErrClosed.Error())
	}
	for _, conn := range c.mu.conns[endpoint] {
		if conn.taken < c.mu.limit {
			conn.taken++
			return conn, nil
		}
	}
	dialed, err := c.dial(c.endpoints[endpoint])
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	conn := &watchConnection{ClientConn: dialed, taken: 1}
	c.mu.conns[endpoint] = append(c.mu.conns[endpoint], conn)
	return conn, nil
}

func (c *watchConnections) release(conn *watchConnection, opened int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn.taken--
	conn.opened -= opened
}

// learn is called when a connection has not opened a stream in time. It reports whether
// the reason is the number of its streams, which then is the limit of all connections: the
// server answers, and no stream was opened meanwhile.
func (c *watchConnections) learn(conn *watchConnection) (full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn.GetState() != connectivity.Ready || conn.opened == 0 || time.Since(conn.last) < openTimeout/2 {
		return false
	}
	if c.mu.limit == streamsPerConnection {
		c.logger.Warn("This etcd, or a proxy before it, allows few streams on a connection: watches need more connections. Raise etcd's --max-concurrent-streams or the proxy's limit to have fewer",
			zap.Int("streams", conn.opened), zap.Strings("endpoints", c.endpoints))
	}
	c.mu.limit = min(c.mu.limit, conn.opened)
	return true
}

// close closes the connections. Streams that are being opened fail.
func (c *watchConnections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
	for _, conns := range c.mu.conns {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
}
