// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// breakableDialer connects to etcd until it is told to refuse; then it ends the
// connections that it has made.
type breakableDialer struct {
	mu struct {
		sync.Mutex
		refuses bool
		open    []net.Conn
	}
	refused chan struct{} // gets one for each attempt that was refused
}

func (d *breakableDialer) dial(ctx context.Context, address string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.refuses {
		select {
		case d.refused <- struct{}{}:
		default:
		}
		return nil, errors.New("refused by the test")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err == nil {
		d.mu.open = append(d.mu.open, conn)
	}
	return conn, err
}

func (d *breakableDialer) refuse(refuses bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.refuses = refuses
	for _, conn := range d.mu.open {
		_ = conn.Close()
	}
	d.mu.open = nil
}

// An etcd that is away for long is found again soon after it is back: with
// gRPC's own pauses, which grow to two minutes, the attempts of this test would
// take twice its deadline.
func TestReconnectsSoonAfterALongOutage(t *testing.T) {
	srv := startEtcd(t, embedded.Config{ClientURL: "http://127.0.0.1:0"})
	d := &breakableDialer{refused: make(chan struct{}, 100)}
	backend := open(t, etcd3.Config{
		Endpoints: srv.Endpoints(), DialOptions: []grpc.DialOption{grpc.WithContextDialer(d.dial)},
	})
	ctx := testContext(t)
	require.NoError(t, backend.Healthy(ctx))

	d.refuse(true)
	for range 10 {
		select {
		case <-d.refused:
		case <-ctx.Done():
			require.FailNow(t, "the client hardly tries to connect")
		}
	}
	d.refuse(false)
	require.NoError(t, backend.Healthy(ctx))
}
