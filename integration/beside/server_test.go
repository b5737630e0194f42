// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"context"
	"crypto/aes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	crdoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes/scheme"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/install"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/openapi"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/registry/device"
	watchcache "github.com/kube-watchcache/watchcache/server"
)

// patience bounds the wait for what is sure to happen.
const patience = time.Minute

// side is one of the two: a server of devices, which are typed, and a server of custom
// resources, both on the same cache.
type side struct {
	name   string
	ours   bool
	etcd   []string
	keys   *keyring
	tamper tamper // with what the side answers

	servers map[string]*endpoint // by API group
	stop    func()               // and wait for the servers to end
}

// endpoint is the address of a server. The client is nobody: each request names its user.
type endpoint struct {
	base   string
	client *http.Client
}

// start runs the servers until stop.
func (s *side) start(t require.TestingT) {
	ctx, cancel := context.WithCancel(context.Background())
	var running errgroup.Group
	s.servers = map[string]*endpoint{}
	for group, open := range map[string]func(require.TestingT) *genericapiserver.GenericAPIServer{fleet.GroupName: s.openDevices, zoo: s.openCustomResources} {
		made := open(t)
		running.Go(func() error { return made.PrepareRun().RunWithContext(ctx) })
		nobody := clientrest.CopyConfig(made.LoopbackClientConfig)
		nobody.BearerToken = ""
		nobody.Dial = (&net.Dialer{Timeout: patience}).DialContext // no transport in common with an earlier server
		client, err := clientrest.HTTPClientFor(nobody)
		require.NoError(t, err)
		s.servers[group] = &endpoint{base: nobody.Host, client: client}
	}
	s.stop = func() {
		cancel()
		require.NoError(t, running.Wait(), s.name)
		for _, e := range s.servers {
			e.client.CloseIdleConnections()
		}
	}
	for group := range s.servers {
		ready := &request{resource: &resource{group: group}, method: http.MethodGet, path: "/readyz", user: administrator}
		require.NoError(t, wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
			a, err := s.ask(ctx, ready)
			return err == nil && a.status == http.StatusOK, nil
		}), "%s, %s is not ready", s.name, group)
	}
}

// named authenticates each request as the user that it names.
type named struct{}

const userHeader = "X-Beside-User"

func (named) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	name := r.Header.Get(userHeader)
	return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, name != "", nil
}

// authorize allows the administrator everything; "reader-of-a" reads in one namespace, and
// "lister" does not watch.
func authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	read := slices.Contains([]string{"get", "list", "watch"}, a.GetVerb())
	switch name := a.GetUser().GetName(); {
	case name == administrator, name == user.APIServerUser, !a.IsResourceRequest(),
		name == "reader-of-a" && read && a.GetNamespace() == "a",
		name == "lister" && read && a.GetVerb() != "watch":
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionDeny, "", nil
}

// configure makes the configuration that all servers have in common.
func (s *side) configure(t require.TestingT, codec runtime.Codec, codecs serializer.CodecFactory) (*genericoptions.RecommendedOptions, *genericapiserver.RecommendedConfig) {
	o := genericoptions.NewRecommendedOptions("/registry", codec)
	o.Etcd.StorageConfig.Transport.ServerList = s.etcd
	o.Etcd.StorageConfig.CompactionInterval = 0 // a step compacts
	o.Authentication, o.Authorization, o.CoreAPI, o.Admission = nil, nil, nil, nil
	o.Features.EnablePriorityAndFairness = false
	var err error
	o.SecureServing.Listener, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	o.SecureServing.ServerCert.CertDirectory = "" // kept in memory
	require.NoError(t, o.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}))
	config := genericapiserver.NewRecommendedConfig(codecs)
	config.EffectiveVersion = compatibility.NewEffectiveVersionFromString("1.37", "", "")
	config.ResourceTransformers = s.keys
	config.ShutdownWatchTerminationGracePeriod = time.Second
	require.NoError(t, o.ApplyTo(config))
	config.Authentication.Authenticator, config.Authorization.Authorizer = named{}, authorizer.AuthorizerFunc(authorize)
	if s.ours {
		require.NoError(t, watchcache.Install(&config.Config))
	}
	return o, config
}

func (s *side) openDevices(t require.TestingT) *genericapiserver.GenericAPIServer {
	scheme := runtime.NewScheme()
	require.NoError(t, install.AddToScheme(scheme))
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, v1)
	scheme.AddUnversionedTypes(v1, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	codecs := serializer.NewCodecFactory(scheme)
	_, config := s.configure(t, codecs.LegacyCodec(fleetv1.SchemeGroupVersion), codecs)
	namer := openapinamer.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	made, err := config.Complete().New("devices", genericapiserver.NewEmptyDelegate())
	require.NoError(t, err)
	storage, err := device.NewStorage(scheme, config.RESTOptionsGetter)
	require.NoError(t, err)
	made.RegisterDestroyFunc(storage.Device.Destroy)
	group := genericapiserver.NewDefaultAPIGroupInfo(fleet.GroupName, scheme, metav1.ParameterCodec, codecs)
	for _, version := range devices.versions {
		group.VersionedResourcesStorageMap[version] = map[string]rest.Storage{"devices": storage.Device, "devices/status": storage.Status}
	}
	if s.ours {
		require.NoError(t, watchcache.InstallAPIGroup(made, &group))
	} else {
		require.NoError(t, made.InstallAPIGroup(&group))
	}
	return made
}

func (s *side) openCustomResources(t require.TestingT) *genericapiserver.GenericAPIServer {
	o, config := s.configure(t, apiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion), apiserver.Codecs)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(apiextensionsopenapi.GetOpenAPIDefinitions,
		openapinamer.NewDefinitionNamer(apiserver.Scheme, scheme.Scheme))
	config.MergedResourceConfig = apiserver.DefaultAPIResourceConfigSource()
	getter := crdoptions.NewCRDRESTOptionsGetter(*o.Etcd, config.ResourceTransformers, config.StorageObjectCountTracker)
	var err error
	if s.ours {
		getter, err = watchcache.CustomResources(&config.Config, getter)
		require.NoError(t, err)
	}
	made, err := (&apiserver.Config{GenericConfig: config, ExtraConfig: apiserver.ExtraConfig{
		CRDRESTOptionsGetter: getter,
		ServiceResolver:      webhook.NewDefaultServiceResolver(),
		AuthResolverWrapper:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, config.LoopbackClientConfig, noop.NewTracerProvider()),
	}}).Complete().New(genericapiserver.NewEmptyDelegate())
	require.NoError(t, err)
	return made.GenericAPIServer
}

// keyring encrypts at rest for both sides. The first key writes, the readable ones read.
type keyring struct {
	mu       sync.RWMutex
	keys     []value.PrefixTransformer // the newest first
	readable int
}

// rotate makes a new key the one that writes.
func (k *keyring) rotate() {
	k.mu.Lock()
	defer k.mu.Unlock()
	secret := sha256.Sum256(fmt.Append(nil, "key ", len(k.keys)))
	block, _ := aes.NewCipher(secret[:]) // which fails for keys of other sizes only
	gcm, _ := aestransformer.NewGCMTransformer(block)
	k.keys = slices.Insert(k.keys, 0, value.PrefixTransformer{Prefix: fmt.Appendf(nil, "key%d:", len(k.keys)), Transformer: gcm})
	k.readable++
}

// keep leaves the n newest keys readable, or all.
func (k *keyring) keep(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.readable = min(n, len(k.keys))
}

// TransformerForResource leaves definitions as they are: no step takes away what the servers
// need.
func (k *keyring) TransformerForResource(r schema.GroupResource) value.Transformer {
	if r.Resource == devices.plural || r.Resource == pandas.plural {
		return k
	}
	return identity.NewEncryptCheckTransformer()
}

func (k *keyring) current() value.Transformer {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return value.NewPrefixTransformers(errors.New("no key decrypts this value"), k.keys[:k.readable]...)
}

func (k *keyring) TransformFromStorage(ctx context.Context, data []byte, d value.Context) ([]byte, bool, error) {
	return k.current().TransformFromStorage(ctx, data, d)
}

func (k *keyring) TransformToStorage(ctx context.Context, data []byte, d value.Context) ([]byte, error) {
	return k.current().TransformToStorage(ctx, data, d)
}
