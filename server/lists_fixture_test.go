// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/install"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/registry/device"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// twins is two servers over the same storage of a resource: as without
// InstallAPIGroup, and with it.
type twins struct {
	without, with *httptest.Server
	// encoded counts the items that the encoders of the server with the line encode.
	encoded atomic.Int64
	audited [2]auditLog
	store   *genericregistry.Store
	cache   *cacher.Cacher
}

// countingSerializer counts the items of the lists that its encoders encode.
type countingSerializer struct {
	runtime.NegotiatedSerializer
	items *atomic.Int64
}

func (s countingSerializer) EncoderForVersion(e runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	encoder := s.NegotiatedSerializer.EncoderForVersion(e, gv)
	return countingEncoder{encoder.(runtime.EncoderWithAllocator), s.items}
}

type countingEncoder struct {
	runtime.EncoderWithAllocator
	items *atomic.Int64
}

func (e countingEncoder) count(object runtime.Object) {
	if meta.IsListType(object) {
		e.items.Add(int64(meta.LenList(object)))
	}
}

func (e countingEncoder) Encode(object runtime.Object, w io.Writer) error {
	e.count(object)
	return e.EncoderWithAllocator.Encode(object, w)
}

func (e countingEncoder) EncodeWithAllocator(object runtime.Object, w io.Writer, memory runtime.MemoryAllocator) error {
	e.count(object)
	return e.EncoderWithAllocator.EncodeWithAllocator(object, w, memory)
}

// auditLog keeps the response objects of lists.
type auditLog struct {
	mu    sync.Mutex
	lists [][]byte
}

func (*auditLog) Run(<-chan struct{}) error { return nil }
func (*auditLog) Shutdown()                 {}
func (*auditLog) String() string            { return "test" }

func (l *auditLog) ProcessEvents(events ...*auditinternal.Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		if e.Verb == "list" && e.ResponseObject != nil {
			l.lists = append(l.lists, bytes.Clone(e.ResponseObject.Raw))
		}
	}
	return true
}

func (l *auditLog) take() [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.lists
	l.lists = nil
	return taken
}

// resourceUnderTest makes the storages of an API group, with the versions it is served in.
type resourceUnderTest struct {
	group    string
	versions []string
	scheme   *runtime.Scheme
	codecs   serializer.CodecFactory
	open     func(testing.TB, *genericapiserver.Config) (storages map[string]rest.Storage, store *genericregistry.Store)
	stored   schema.GroupVersion
}

func unversioned(t testing.TB, add ...func(*runtime.Scheme) error) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, a := range add {
		require.NoError(t, a(scheme))
	}
	core := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, core)
	scheme.AddUnversionedTypes(core, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	return scheme
}

// devices are internal objects, which are served in two versions and JSON.
func devices(t testing.TB) *resourceUnderTest {
	scheme := unversioned(t, install.AddToScheme)
	return &resourceUnderTest{
		group: fleet.GroupName, versions: []string{"v1", v1beta1.SchemeGroupVersion.Version}, scheme: scheme,
		codecs: serializer.NewCodecFactory(scheme), stored: fleetv1.SchemeGroupVersion,
		open: func(t testing.TB, config *genericapiserver.Config) (map[string]rest.Storage, *genericregistry.Store) {
			s, err := device.NewStorage(scheme, config.RESTOptionsGetter)
			require.NoError(t, err)
			t.Cleanup(s.Device.Destroy)
			return map[string]rest.Storage{"devices": s.Device, "devices/status": s.Status}, s.Device.Store
		},
	}
}

// pods are internal objects, which are served in JSON and protobuf.
func pods(t testing.TB) *resourceUnderTest {
	scheme := unversioned(t, example.AddToScheme, examplev1.AddToScheme)
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	return &resourceUnderTest{
		group: example.GroupName, versions: []string{"v1"}, scheme: scheme,
		codecs: serializer.NewCodecFactory(scheme), stored: examplev1.SchemeGroupVersion,
		open: func(t testing.TB, config *genericapiserver.Config) (map[string]rest.Storage, *genericregistry.Store) {
			store := registryOf(t, config.RESTOptionsGetter)
			return map[string]rest.Storage{"pods": store}, store
		},
	}
}

// registryOf returns a registry of pods.
func registryOf(t testing.TB, getter generic.RESTOptionsGetter) *genericregistry.Store {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, example.AddToScheme(scheme))
	require.NoError(t, examplev1.AddToScheme(scheme))
	strategy := poddata.NewStrategy(scheme)
	resource := example.SchemeGroupVersion.WithResource("pods").GroupResource()
	store := &genericregistry.Store{
		NewFunc: func() runtime.Object { return &example.Pod{} }, NewListFunc: func() runtime.Object { return &example.PodList{} },
		DefaultQualifiedResource: resource, SingularQualifiedResource: resource,
		CreateStrategy: strategy, UpdateStrategy: strategy, DeleteStrategy: strategy,
		TableConvertor: rest.NewDefaultTableConvertor(resource),
	}
	require.NoError(t, store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter}))
	t.Cleanup(store.Destroy)
	require.Eventually(t, func() bool { return store.ReadinessCheckFunc() == nil }, time.Minute, 10*time.Millisecond)
	return store
}

// serveTwins serves the resource with and without the line.
func serveTwins(t testing.TB, r *resourceUnderTest, audited auditinternal.Level, options ...cacher.Option) *twins {
	t.Helper()
	etcd := startEtcd(t)
	etcd.Codec = r.codecs.LegacyCodec(r.stored)
	s := &twins{}
	var storages map[string]rest.Storage
	for i, installed := range []bool{true, false} {
		generic := newServer(t, func(config *genericapiserver.Config) {
			config.BuildHandlerChainFunc = chainWithUsers
			config.RESTOptionsGetter = getterFor(etcd)
			config.AuditBackend = &s.audited[i]
			config.AuditPolicyRuleEvaluator = policy.NewFakePolicyRuleEvaluator(audited, nil)
			withoutSchemas(config, r.scheme)
			require.NoError(t, Install(config, options...))
			if installed {
				storages, s.store = r.open(t, config)
			}
		})
		group := genericapiserver.NewDefaultAPIGroupInfo(r.group, r.scheme, runtime.NewParameterCodec(r.scheme), r.codecs)
		for _, v := range r.versions {
			group.VersionedResourcesStorageMap[v] = storages
		}
		served := httptest.NewUnstartedServer(generic.Handler)
		served.EnableHTTP2 = true
		if installed {
			group.NegotiatedSerializer = countingSerializer{group.NegotiatedSerializer, &s.encoded}
			require.NoError(t, PrepareAPIGroup(generic, &group))
			s.with = served
		} else {
			s.without = served
		}
		require.NoError(t, generic.InstallAPIGroup(&group))
		served.StartTLS()
		t.Cleanup(served.Close)
	}
	var ok bool
	if s.cache, ok = s.store.Storage.Storage.(*cacher.Cacher); !ok {
		return s // on the shipped cacher
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, s.cache.Wait(ctx))
	return s
}

// withoutSchemas makes a server of config need no schema of its types.
func withoutSchemas(config *genericapiserver.Config, scheme *runtime.Scheme) {
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(func(common.ReferenceCallback) map[string]common.OpenAPIDefinition { return nil },
		openapinamer.NewDefinitionNamer(scheme))
	config.OpenAPIV3Config.IgnorePrefixes = []string{genericapiserver.APIGroupPrefix}
}

// userHeader names the user of a request, for chainWithUsers.
const userHeader = "X-Test-User"

// chainWithUsers is the default chain of handlers, and takes the user from a header.
func chainWithUsers(api http.Handler, c *genericapiserver.Config) http.Handler {
	return genericapiserver.DefaultBuildHandlerChain(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := r.Header.Get(userHeader); name != "" {
			r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: name}))
		}
		api.ServeHTTP(w, r)
	}), c)
}

// userOf returns the name that chainWithUsers has found.
func userOf(ctx context.Context) string {
	if u, ok := request.UserFrom(ctx); ok {
		return u.GetName()
	}
	return ""
}

// put creates or updates an object.
func (s *twins) put(t testing.TB, object runtime.Object) {
	t.Helper()
	require.NoError(t, s.tryPut(object))
}

func (s *twins) tryPut(object runtime.Object) error {
	m, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	ctx := request.WithNamespace(request.NewContext(), m.GetNamespace())
	_, _, err = s.store.Update(ctx, m.GetName(), rest.DefaultUpdatedObjectInfo(object), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{})
	return err
}

func (s *twins) tryRemove(namespace, name string) error {
	_, _, err := s.store.Delete(request.WithNamespace(request.NewContext(), namespace), name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	return err
}

// answer is what a client sees of a response.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a LIST as it is, without what Go's client does about compression.
func ask(t testing.TB, served *httptest.Server, path, accept string, compressed bool) answer {
	t.Helper()
	got, err := tryAsk(t.Context(), served, path, accept, compressed)
	require.NoError(t, err)
	return got
}

func tryAsk(ctx context.Context, served *httptest.Server, path, accept string, compressed bool) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, served.URL+path, nil)
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("Accept-Encoding", "identity")
	if compressed {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	response, err := served.Client().Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	body := io.Reader(response.Body)
	if response.Header.Get("Content-Encoding") == "gzip" {
		if body, err = gzip.NewReader(body); err != nil {
			return answer{}, err
		}
		response.Header.Del("Content-Length") // which net/http sets if the body is short
	}
	read, err := io.ReadAll(body)
	response.Header.Del("Date")
	response.Header.Del("Audit-Id")
	return answer{response.StatusCode, response.Header, read}, err
}

// expectSame asks both servers and compares the answers.
func (s *twins) expectSame(t *testing.T, path, accept string, compressed bool) answer {
	t.Helper()
	want := ask(t, s.without, path, accept, compressed)
	got := ask(t, s.with, path, accept, compressed)
	requireSame(t, want, got, path, accept, compressed)
	return got
}

func requireSame(t *testing.T, want, got answer, path, accept string, compressed bool) {
	t.Helper()
	what := fmt.Sprintf("%s as %s, gzip: %v", path, accept, compressed)
	require.Equal(t, want.status, got.status, what)
	require.Equal(t, want.header, got.header, what)
	for i := range min(len(want.body), len(got.body)) {
		if want.body[i] != got.body[i] {
			around := func(b []byte) string { return string(b[max(0, i-200):min(len(b), i+200)]) }
			require.Equal(t, around(want.body), around(got.body), "%s, at byte %d", what, i)
		}
	}
	require.Len(t, got.body, len(want.body), what)
}

// text is as long as a list needs to be to be compressed.
func text(n int) string { return strings.Repeat("0123456789<>&é ", n/15) }
