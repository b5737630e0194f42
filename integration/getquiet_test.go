// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// BenchmarkGetOfAQuietResource is a GET without a resourceVersion of an object
// that nobody writes, while another resource is written all the time: from the
// cache, and from etcd itself.
func BenchmarkGetOfAQuietResource(b *testing.B) {
	server := etcdserver.Start(b, etcdserver.Config{})
	codec := poddata.JSONCodec()
	backend, err := etcd3.Open(b.Context(), etcd3.Config{Endpoints: server.Endpoints(), Prefix: "/quiet"})
	require.NoError(b, err)
	defer func() { require.NoError(b, backend.Close()) }()
	stored, err := backend.Storage(etcd3.ResourceConfig{
		GroupResource: pods, ResourcePrefix: podPrefix, Codec: codec, NewFunc: poddata.New, NewListFunc: poddata.NewList,
	})
	require.NoError(b, err)
	require.NoError(b, stored.Create(b.Context(), podPrefix+"ns/quiet", poddata.Pod("ns/quiet"), nil, 0))
	c, err := cacher.New(podConfig(stored, codec))
	require.NoError(b, err)
	defer c.Stop()
	require.NoError(b, c.Wait(b.Context()))

	ctx, stop := context.WithCancel(b.Context())
	var writer sync.WaitGroup
	defer writer.Wait()
	defer stop()
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := backend.Client().Put(ctx, "/quiet/others/one", strconv.Itoa(i)); err != nil && ctx.Err() == nil {
				b.Error(err)
				return
			}
		}
	})
	for _, of := range []struct {
		name string
		storage.Interface
	}{{"cache", c}, {"etcd", stored}} {
		b.Run(of.name, func(b *testing.B) {
			for b.Loop() {
				pod := &example.Pod{}
				if err := of.Get(b.Context(), podPrefix+"ns/quiet", storage.GetOptions{}, pod); err != nil || pod.Name != "quiet" {
					b.Fatal(pod.Name, err)
				}
			}
		})
	}
}
