// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
)

// restartServer ends the server in good order and starts the next on the same
// etcd. Clients find it at the same address; until it is ready their connections
// are closed as soon as they open.
func (fx *fixture) restartServer(t *testing.T) {
	t.Helper()
	fx.stopServer(t)
	fx.startServer(t)
}

// stopServer is the first half of restartServer.
func (fx *fixture) stopServer(t *testing.T) {
	t.Helper()
	fx.proxy.Forward("")
	require.NoError(t, fx.server().stop())
	fx.proxy.Cut()
}

// startServer is the second half of restartServer.
func (fx *fixture) startServer(t *testing.T) {
	t.Helper()
	require.NoError(t, fx.start(within(t)))
}

// restartEtcd stops etcd and starts it on its data and its address.
func (fx *fixture) restartEtcd(t *testing.T) {
	t.Helper()
	require.NoError(t, fx.etcd.Restart(within(t)))
}

// cut breaks all clients' connections, as soon as there is one.
func (fx *fixture) cut(t *testing.T) {
	t.Helper()
	eventually(t, "there is nothing to cut", func(context.Context) error {
		if fx.proxy.Cut() == 0 {
			return errors.New("no connection")
		}
		return nil
	})
}

// cutAfter breaks each of the clients' present connections when n more bytes have
// been sent to its client: in the middle of an event that is longer than that.
func (fx *fixture) cutAfter(t *testing.T, n int) {
	t.Helper()
	require.NotZero(t, fx.proxy.CutAfter(n), "there is no connection to cut")
}

// flushed is what flushWindow writes.
const flushedNamespace, flushedName = "flush", "one"

// flushWindow writes, in a namespace of its own, until the window has neither
// resourceVersion nor anything that was written before the call. A watch of a
// namespace in which something was written after resourceVersion can't be resumed
// there any more, and is told 410.
func (fx *fixture) flushWindow(t *testing.T, resourceVersion string) {
	t.Helper()
	rv := max(number(t, resourceVersion), uint64(fx.revision(t)))
	ctx := within(t)
	for fx.cacher().Status().OldestResourceVersion <= rv {
		require.NoError(t, ctx.Err())
		fx.touch(ctx, t)
	}
}

// touch writes what flushWindow writes, past the registry, for speed.
func (fx *fixture) touch(ctx context.Context, t *testing.T) {
	t.Helper()
	c := fx.cacher()
	key := c.Config().ResourcePrefix + flushedNamespace + "/" + flushedName
	count := func(stored runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		d := stored.(*fleet.Device)
		if d.Name == "" {
			if err := scheme.Convert(device(flushedNamespace, flushedName), d, nil); err != nil {
				return nil, nil, err
			}
		}
		d.Generation++
		return d, nil, nil
	}
	require.NoError(t, c.GuaranteedUpdate(ctx, key, &fleet.Device{}, true, nil, count, nil))
}
