// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// fakeBackend counts what is open on it.
type fakeBackend struct {
	config    etcd3.Config
	storages  atomic.Int32
	destroyed atomic.Int32
	closed    atomic.Int32
	err       error
	sick      atomic.Pointer[error]
	// silent: Healthy waits for the end of its context.
	silent atomic.Bool
}

// fail makes the servers of the backend fail, or not if err is nil.
func (b *fakeBackend) fail(err error) { b.sick.Store(&err) }

func (b *fakeBackend) Healthy(ctx context.Context) error {
	if b.silent.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if err := b.sick.Load(); err != nil {
		return *err
	}
	return nil
}

func (b *fakeBackend) rawStorage(decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
	if b.err != nil {
		return nil, nil, b.err
	}
	b.storages.Add(1)
	return nil, func() { b.destroyed.Add(1) }, nil
}

func (b *fakeBackend) Close() error {
	b.closed.Add(1)
	return errors.New("the pool has nobody to tell that closing failed")
}

// fakePool opens fakeBackends and keeps them.
func fakePool() (*pool, *[]*fakeBackend) {
	var mu sync.Mutex
	opened := &[]*fakeBackend{}
	p := newPool()
	p.open = func(_ context.Context, config etcd3.Config) (backend, error) {
		mu.Lock()
		defer mu.Unlock()
		b := &fakeBackend{config: config}
		*opened = append(*opened, b)
		return b, nil
	}
	return p, opened
}

func resourceConfig(change func(*storagebackend.Config)) *storagebackend.ConfigForResource {
	config := storagebackend.NewDefaultConfig("/registry", nil)
	config.Transport.ServerList = []string{"http://a:2379", "http://b:2379"}
	if change != nil {
		change(config)
	}
	return config.ForResource(gadgets)
}

func TestPoolSharesBackends(t *testing.T) {
	p, opened := fakePool()
	_, destroyFirst, err := p.rawStorage(decoration.Request{Config: resourceConfig(nil), ResourcePrefix: ""})
	require.NoError(t, err)
	_, destroySecond, err := p.rawStorage(decoration.Request{Config: resourceConfig(func(c *storagebackend.Config) {
		c.Transport.ServerList = []string{"http://b:2379", "http://a:2379"}
		c.Prefix = "/elsewhere"
	}), ResourcePrefix: ""})
	require.NoError(t, err)
	require.Len(t, *opened, 1)
	backend := (*opened)[0]
	require.EqualValues(t, 2, backend.storages.Load())

	destroyFirst()
	destroyFirst()
	require.EqualValues(t, 1, backend.destroyed.Load(), "destroying twice counts once")
	require.Zero(t, backend.closed.Load(), "one storage is left")
	destroySecond()
	require.EqualValues(t, 1, backend.closed.Load())
	require.Zero(t, p.backends.Len())

	_, destroyThird, err := p.rawStorage(decoration.Request{Config: resourceConfig(nil), ResourcePrefix: ""})
	require.NoError(t, err)
	require.Len(t, *opened, 2, "a closed backend is not used again")
	destroyThird()
}

func TestPoolTellsServersApart(t *testing.T) {
	lookup := func(egressselector.NetworkContext) (utilnet.DialFunc, error) {
		return func(context.Context, string, string) (net.Conn, error) { return nil, nil }, nil
	}
	p, opened := fakePool()
	for _, change := range []func(*storagebackend.Config){
		nil,
		func(c *storagebackend.Config) { c.Transport.ServerList = []string{"http://a:2379"} },
		func(c *storagebackend.Config) { c.Transport.CertFile = "other" },
		func(c *storagebackend.Config) { c.Transport.KeyFile = "other" },
		func(c *storagebackend.Config) { c.Transport.TrustedCAFile = "other" },
		func(c *storagebackend.Config) { c.Transport.EgressLookup = lookup },
		func(c *storagebackend.Config) { c.CompactionInterval = time.Second },
	} {
		_, destroy, err := p.rawStorage(decoration.Request{Config: resourceConfig(change), ResourcePrefix: ""})
		require.NoError(t, err)
		defer destroy()
	}
	require.Len(t, *opened, 7)
	first, egress, compaction := (*opened)[0].config, (*opened)[5].config, (*opened)[6].config
	require.Equal(t, []string{"http://a:2379", "http://b:2379"}, first.Endpoints)
	require.Empty(t, first.DialOptions)
	require.Len(t, egress.DialOptions, 1)
	require.Equal(t, time.Second, compaction.CompactionInterval)
	require.NotNil(t, first.TracerProvider)
}

func TestPoolClosesAfterFailedStorage(t *testing.T) {
	p := newPool()
	b := &fakeBackend{err: errors.New("no such codec")}
	p.open = func(context.Context, etcd3.Config) (backend, error) { return b, nil }
	_, _, err := p.rawStorage(decoration.Request{Config: resourceConfig(nil), ResourcePrefix: ""})
	require.ErrorIs(t, err, b.err)
	require.EqualValues(t, 1, b.closed.Load())
	require.Zero(t, p.backends.Len())
}

func TestPoolConcurrently(t *testing.T) {
	p, opened := fakePool()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 100 {
				_, destroy, err := p.rawStorage(decoration.Request{Config: resourceConfig(nil), ResourcePrefix: ""})
				if !assert.NoError(t, err) {
					return
				}
				destroy()
			}
		})
	}
	wg.Wait()
	require.Zero(t, p.backends.Len())
	for _, b := range *opened {
		require.EqualValues(t, 1, b.closed.Load())
		require.Equal(t, b.storages.Load(), b.destroyed.Load())
	}
}
