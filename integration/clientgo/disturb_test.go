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
func (w *world) restartServer(t *testing.T) {
	t.Helper()
	w.stopServer(t)
	w.startServer(t)
}

// stopServer is the first half of restartServer.
func (w *world) stopServer(t *testing.T) {
	t.Helper()
	w.proxy.forward("")
	require.NoError(t, w.server().stop())
	w.proxy.cut()
}

// startServer is the second half of restartServer.
func (w *world) startServer(t *testing.T) {
	t.Helper()
	require.NoError(t, w.start(within(t)))
}

// restartEtcd stops etcd and starts it on its data and its address.
func (w *world) restartEtcd(t *testing.T) {
	t.Helper()
	require.NoError(t, w.etcd.Restart(within(t)))
}

// cut breaks all clients' connections, as soon as there is one.
func (w *world) cut(t *testing.T) {
	t.Helper()
	eventually(t, "there is nothing to cut", func(context.Context) error {
		if w.proxy.cut() == 0 {
			return errors.New("no connection")
		}
		return nil
	})
}

// cutAfter breaks each of the clients' present connections when n more bytes have
// been sent to its client: in the middle of an event that is longer than that.
func (w *world) cutAfter(t *testing.T, n int) {
	t.Helper()
	require.NotZero(t, w.proxy.cutAfter(n), "there is no connection to cut")
}

// flushed is what flushWindow writes.
const flushedNamespace, flushedName = "flush", "one"

// flushWindow writes, in a namespace of its own, until a watch can't be resumed at
// or before resourceVersion any more, and is told 410.
func (w *world) flushWindow(t *testing.T, resourceVersion string) {
	t.Helper()
	rv := number(t, resourceVersion)
	ctx := within(t)
	for w.cacher().Status().OldestResourceVersion <= rv {
		require.NoError(t, ctx.Err())
		w.touch(ctx, t)
	}
}

// touch writes what flushWindow writes, past the registry, for speed.
func (w *world) touch(ctx context.Context, t *testing.T) {
	t.Helper()
	c := w.cacher()
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
