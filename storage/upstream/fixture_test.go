// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"encoding/pem"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/server"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// The servers' logs are shown only with -v.
func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Verbose() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(os.Exit),
		// k8s.io/apiserver's own, which live as long as the process.
		goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2"),
		goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*freshnessWaiter).waitUntilFreshLocked.func2"),
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/storage/feature.(*defaultFeatureSupportChecker).checkClient.func1"))
}

// patience is how long a test waits for what must happen.
const patience = time.Minute

// api serves Pods over HTTPS, as a kube-apiserver does: from the cacher that
// k8s.io/apiserver ships, or from ours, over an etcd inside the process.
type api struct {
	server *httptest.Server
	// handler is the API's, behind what the test intercepts.
	handler http.Handler
	etcd    *clientv3.Client
	scheme  *runtime.Scheme
	codecs  serializer.CodecFactory

	mu struct {
		sync.Mutex
		// intercept, if set, answers requests and returns true.
		intercept func(http.ResponseWriter, *http.Request) bool
		requests  []string
	}
}

var pods = examplev1.SchemeGroupVersion.WithResource("pods")

// serve starts a server, with our cache or with the shipped one.
func serve(t testing.TB, ours bool) *api {
	t.Helper()
	etcd, err := embedded.Start(context.Background(), embedded.Config{Dir: filepath.Join(t.TempDir(), "data"), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	client, err := clientv3.New(clientv3.Config{Endpoints: etcd.Endpoints(), DialTimeout: patience})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })

	scheme := poddata.Scheme()
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	core := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, core)
	scheme.AddUnversionedTypes(core, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	require.NoError(t, scheme.AddFieldLabelConversionFunc(examplev1.SchemeGroupVersion.WithKind("Pod"),
		func(label, value string) (string, string, error) { return label, value, nil }))
	a := &api{etcd: client, scheme: scheme, codecs: serializer.NewCodecFactory(scheme)}

	stored := storagebackend.NewDefaultConfig("/registry", a.codecs.LegacyCodec(examplev1.SchemeGroupVersion))
	stored.Transport.ServerList, stored.CompactionInterval = etcd.Endpoints(), 0
	options := genericoptions.NewEtcdOptions(stored)
	config := genericapiserver.NewConfig(a.codecs)
	config.ExternalAddress, config.LoopbackClientConfig = "127.0.0.1:443", &clientrest.Config{}
	config.EffectiveVersion, config.SkipOpenAPIInstallation = compatibility.DefaultBuildEffectiveVersion(), true
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(func(common.ReferenceCallback) map[string]common.OpenAPIDefinition { return nil },
		openapinamer.NewDefinitionNamer(scheme))
	config.OpenAPIV3Config.IgnorePrefixes = []string{genericapiserver.APIGroupPrefix}
	config.RESTOptionsGetter = options.CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{StorageConfig: options.StorageConfig}, nil)
	if ours {
		require.NoError(t, server.Install(config))
	}
	generic, err := config.Complete(nil).New("upstream", genericapiserver.NewEmptyDelegate())
	require.NoError(t, err)
	t.Cleanup(generic.Destroy)
	group := genericapiserver.NewDefaultAPIGroupInfo(example.GroupName, scheme, runtime.NewParameterCodec(scheme), a.codecs)
	store := a.registry(t, config.RESTOptionsGetter)
	group.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{"pods": store}
	require.NoError(t, generic.InstallAPIGroup(&group))
	a.handler = generic.Handler
	a.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.mu.requests = append(a.mu.requests, r.Method+" "+r.URL.RequestURI())
		intercept := a.mu.intercept
		a.mu.Unlock()
		if intercept == nil || !intercept(w, r) {
			a.handler.ServeHTTP(w, r)
		}
	}))
	a.server.EnableHTTP2 = true
	a.server.StartTLS()
	t.Cleanup(func() {
		a.server.CloseClientConnections()
		a.server.Close()
	})
	return a
}

func (a *api) registry(t testing.TB, getter generic.RESTOptionsGetter) *genericregistry.Store {
	t.Helper()
	strategy := poddata.NewStrategy(a.scheme)
	resource := pods.GroupResource()
	store := &genericregistry.Store{
		NewFunc: poddata.New, NewListFunc: poddata.NewList, DefaultQualifiedResource: resource, SingularQualifiedResource: resource,
		CreateStrategy: strategy, UpdateStrategy: strategy, DeleteStrategy: strategy,
		TableConvertor: rest.NewDefaultTableConvertor(resource),
	}
	require.NoError(t, store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: poddata.Attrs}))
	t.Cleanup(store.Destroy)
	require.Eventually(t, func() bool { return store.ReadinessCheckFunc() == nil }, patience, 10*time.Millisecond)
	return store
}

// intercept answers requests in the place of the server; nil: the server answers.
func (a *api) intercept(f func(http.ResponseWriter, *http.Request) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.intercept = f
}

// requests returns the requests since the last call.
func (a *api) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	requests := a.mu.requests
	a.mu.requests = nil
	return requests
}

// connection is the way to the server, with connections of its own.
func (a *api) connection(t testing.TB) *clientrest.Config {
	t.Helper()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.server.Certificate().Raw})
	return &clientrest.Config{Host: a.server.URL, TLSClientConfig: clientrest.TLSClientConfig{CAData: authority}}
}

// config is that of a Store of internal Pods.
func (a *api) config(t testing.TB) Config {
	return Config{
		REST: a.connection(t), Resource: pods, Namespaced: true, Serializer: a.codecs,
		ResourcePrefix: "/pods", NewFunc: poddata.New, NewListFunc: poddata.NewList,
	}
}

func (a *api) store(t testing.TB, change ...func(*Config)) *Store {
	t.Helper()
	config := a.config(t)
	for _, c := range change {
		c(&config)
	}
	s, err := New(config)
	require.NoError(t, err)
	return s
}

// cache is a cache over a Store, as a relay has it.
func cache(t testing.TB, s storage.Interface, change ...func(*cacher.Config)) *cacher.Cacher {
	t.Helper()
	config := cacher.Config{
		Storage: s, Versioner: versioner, GroupResource: pods.GroupResource(), ResourcePrefix: "/pods/",
		KeyFunc: poddata.Key, GetAttrsFunc: poddata.Attrs, NewFunc: poddata.New, NewListFunc: poddata.NewList,
		ConsistentGetFromStorage: true, FreshnessTimeout: 6 * time.Second,
	}
	for _, c := range change {
		c(&config)
	}
	c, err := cacher.New(config)
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, c.Wait(ctx))
	return c
}
