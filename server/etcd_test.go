// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// startEtcd starts an etcd for the test and returns an API server's options for
// it. When the test is over and etcd has ended, no goroutine of ours may be left: one of
// the shipped cacher's wakes a read after three seconds, whether or not it was answered.
func startEtcd(t testing.TB) *storagebackend.Config {
	t.Helper()
	before := goleak.IgnoreCurrent()
	timer := goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2")
	timer38 := goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*freshnessWaiter).waitUntilFreshLocked.func2")
	timer36 := goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshAndBlock.func2")
	t.Cleanup(func() { goleak.VerifyNone(t, before, timer, timer36, timer38) })
	return startEtcdFor(t)
}

// startEtcdFor is startEtcd for tests that leave goroutines behind for a while.
func startEtcdFor(t testing.TB) *storagebackend.Config {
	t.Helper()
	config, _, _ := restartable(t)
	return config
}

// restartable starts an etcd that the test can stop and start again.
func restartable(t testing.TB) (config *storagebackend.Config, stop, start func()) {
	t.Helper()
	where := embedded.Config{Dir: filepath.Join(t.TempDir(), "data"), UnsafeNoFsync: true}
	var etcd *embedded.Server
	start = func() {
		var err error
		etcd, err = embedded.Start(context.Background(), where)
		require.NoError(t, err)
	}
	stop = func() { require.NoError(t, etcd.Close()) }
	start()
	where.ClientURL = etcd.Endpoints()[0]
	t.Cleanup(func() { stop() })

	scheme := runtime.NewScheme()
	require.NoError(t, example.AddToScheme(scheme))
	require.NoError(t, examplev1.AddToScheme(scheme))
	config = storagebackend.NewDefaultConfig("/registry", serializer.NewCodecFactory(scheme).LegacyCodec(examplev1.SchemeGroupVersion))
	config.Transport.ServerList = etcd.Endpoints()
	return config, stop, start
}

// getterFor is the getter that a server's flags for an etcd bring about.
func getterFor(etcd *storagebackend.Config) generic.RESTOptionsGetter {
	options := genericoptions.NewEtcdOptions(etcd)
	return options.CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{StorageConfig: options.StorageConfig}, nil)
}

// open builds the storage of a resource as a registry does.
func open(t *testing.T, getter generic.RESTOptionsGetter, resource string) (storage.Interface, factory.DestroyFunc) {
	t.Helper()
	options, err := getter.GetRESTOptions(schema.GroupResource{Group: example.GroupName, Resource: resource}, &example.Pod{})
	require.NoError(t, err)
	prefix := "/" + options.ResourcePrefix
	opened, destroy, err := decoration.Call(options.Decorator, decoration.Request{Config: options.StorageConfig, ResourcePrefix: prefix, KeyFunc: func(obj runtime.Object) (string, error) { return storage.NamespaceKeyFunc(prefix+"/", obj) }, NewFunc: func() runtime.Object { return &example.Pod{} }, NewListFunc: func() runtime.Object { return &example.PodList{} }, GetAttrsFunc: storage.DefaultNamespaceScopedAttr})
	require.NoError(t, err)
	return opened, destroy
}

// TestVersionsShareACache: the common layout makes a store for each served
// version. Stores that are made concurrently, each with its own codec, share
// one cache, one watch and one client; each reads the other's writes; closing
// the last one closes everything.
func TestVersionsShareACache(t *testing.T) {
	etcd := startEtcd(t)
	config := &genericapiserver.Config{RESTOptionsGetter: getterFor(etcd)}
	require.NoError(t, Install(config))
	installed := config.HealthzChecks[0].(marker).installation

	const versions = 8
	type opened struct {
		storage storage.Interface
		destroy factory.DestroyFunc
	}
	all := make(chan opened, versions)
	var group sync.WaitGroup
	for range versions {
		group.Go(func() {
			cache, destroy := open(t, config.RESTOptionsGetter, "pods")
			all <- opened{cache, destroy}
		})
	}
	group.Wait()
	first := <-all
	ctx := context.Background()
	for range versions - 1 {
		other := <-all
		require.Same(t, first.storage, other.storage)
		other.destroy()
		other.destroy()
	}
	require.NoError(t, first.storage.(*cacher.Cacher).Wait(ctx))
	require.NoError(t, installed.check(nil))
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns"}}
	require.NoError(t, first.storage.Create(ctx, "/"+example.GroupName+"/pods/ns/a", pod, nil, 0))
	first.destroy()
	require.Error(t, first.storage.ReadinessCheck(), "the last one has stopped the cache")
}

// TestCheckEtcd: an etcd that answers passes; otherwise the error names the
// endpoint and the reason. Nothing stays open.
func TestCheckEtcd(t *testing.T) {
	config := startEtcd(t)
	require.NoError(t, CheckEtcd(t.Context(), *config))

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	gone := *config
	gone.Transport.ServerList = []string{"http://" + address}
	require.ErrorContains(t, CheckEtcd(t.Context(), gone), address)
	gone.Transport.CertFile = "missing.crt"
	require.ErrorContains(t, CheckEtcd(t.Context(), gone), "missing.crt")
	gone.Type = "etcd2"
	require.ErrorContains(t, CheckEtcd(t.Context(), gone), `"etcd2"`)

	secret := *config
	secret.Transport.ServerList = []string{"http://root:hunter2@" + address}
	err = CheckEtcd(t.Context(), secret)
	require.ErrorContains(t, err, address)
	require.NotContains(t, err.Error(), "hunter2")
	_, _, err = newPool().rawStorage(decoration.Request{Config: secret.ForResource(gadgets), ResourcePrefix: "/gadgets"})
	require.ErrorContains(t, err, address)
	require.NotContains(t, err.Error(), "hunter2")
}
