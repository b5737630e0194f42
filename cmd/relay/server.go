// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	apiversion "k8s.io/apimachinery/pkg/version"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	registryrest "k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/discovery"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	watchcache "github.com/kube-watchcache/watchcache/server"
	"github.com/kube-watchcache/watchcache/storage/upstream"
)

// longRunning reports whether a request is long-running, as in a kube-apiserver.
var longRunning = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))

// server is a relay.
type server struct {
	generic   *genericapiserver.GenericAPIServer
	upstream  *rest.Config
	discovery discovery.DiscoveryInterface
	resources map[schema.GroupResource]*resource
	// version is the upstream's last seen version, refused the last refusal of the relay's
	// credentials.
	version  atomic.Pointer[apiversion.Info]
	refused  atomic.Pointer[refusal]
	refusals prometheus.Counter
	// looking guards looked, the time of the last look. connections holds those already looked at.
	// changed is true if the upstream no longer matches its description.
	looking     sync.Mutex
	looked      time.Time
	connections sync.Map
	changed     atomic.Bool
	// ctx ends with the server; stop ends it.
	ctx  context.Context
	stop context.CancelFunc
}

// newServer returns a relay of the configured resources, as described by the upstream now.
func newServer(ctx context.Context, o *options) (*server, error) {
	connection, err := o.connection()
	if err != nil {
		return nil, err
	}
	s := &server{upstream: connection}
	s.ctx, s.stop = context.WithCancel(ctx)
	s.refusals = prometheus.NewCounter(prometheus.CounterOpts{Name: "watchcache_relay_refused_credentials_total", Help: "Requests of the relay itself that the upstream has refused with 401 or 403."})
	if err := legacyregistry.Registerer().Register(s.refusals); err != nil {
		return nil, err
	}
	bounded := rest.CopyConfig(connection)
	bounded.Timeout = lookTimeout
	if s.discovery, err = discovery.NewDiscoveryClientForConfig(bounded); err != nil {
		return nil, err
	}
	if s.resources, err = s.describe(ctx, o.resources, o.allowSecrets); err != nil {
		return nil, err
	}
	if err := s.review(ctx); err != nil {
		return nil, err
	}
	for _, r := range s.resources {
		if r.store, err = openStore(s.guarded(true), r); err != nil {
			return nil, fmt.Errorf("%s: %w", r.GroupResource(), err)
		}
	}
	scheme, err := newScheme(s.resources)
	if err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(scheme)
	config, err := s.configure(o, codecs)
	if err != nil {
		return nil, err
	}
	if s.generic, err = config.Complete(nil).New("relay", genericapiserver.NewEmptyDelegate()); err != nil {
		return nil, err
	}
	if err := s.install(scheme, codecs, config.RESTOptionsGetter); err != nil {
		return nil, err
	}
	if err := watchcache.AddReadinessHook(s.generic); err != nil {
		return nil, err
	}
	return s, s.generic.AddReadyzChecks(healthz.NamedCheck("upstream", s.answers))
}

// openStore opens a resource's storage, in protobuf for built-in types and otherwise in JSON.
func openStore(connection *rest.Config, r *resource) (*upstream.Store, error) {
	var decoder runtime.NegotiatedSerializer
	if r.typed {
		connection = rest.CopyConfig(connection)
		connection.AcceptContentTypes, connection.ContentType = runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON, runtime.ContentTypeProtobuf
		decoder = clientscheme.Codecs.WithoutConversion()
	}
	return upstream.New(upstream.Config{
		REST: connection, Resource: r.GroupVersionResource, Namespaced: r.of.Namespaced, Serializer: decoder,
		ResourcePrefix: r.prefix(), NewFunc: r.newObject, NewListFunc: r.newList,
		Expires: r.Resource == "events", Registerer: legacyregistry.Registerer(),
	})
}

// configure returns the server's configuration with installed caches.
func (s *server) configure(o *options, codecs serializer.CodecFactory) (*genericapiserver.Config, error) {
	config := genericapiserver.NewConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.LongRunningFunc = longRunning
	config.MaxRequestsInFlight, config.MaxMutatingRequestsInFlight = o.maxInFlight, o.maxInFlight
	config.MinRequestTimeout = int(o.maxWatch / time.Second / 2) // watches last up to twice as long
	config.ShutdownWatchTerminationGracePeriod = 10 * time.Second
	config.SkipOpenAPIInstallation = true // we have no schemas of the upstream's types
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(func(common.ReferenceCallback) map[string]common.OpenAPIDefinition { return nil },
		openapinamer.NewDefinitionNamer(runtime.NewScheme())) // it has no name for unstructured core types
	config.OpenAPIV3Config.IgnorePrefixes = []string{genericapiserver.APIGroupPrefix, genericapiserver.DefaultLegacyAPIPrefix}
	if o.authentication.RemoteKubeConfigFile == "" {
		o.authentication.RemoteKubeConfigFile = o.kubeconfig
	}
	if o.authorization.RemoteKubeConfigFile == "" {
		o.authorization.RemoteKubeConfigFile = o.kubeconfig
	}
	if err := o.serving.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return nil, err
	}
	if err := o.serving.ApplyTo(&config.SecureServing, &config.LoopbackClientConfig); err != nil {
		return nil, err
	}
	err := errors.Join(o.authentication.ApplyTo(&config.Authentication, config.SecureServing, nil), o.authorization.ApplyTo(&config.Authorization),
		o.audit.ApplyTo(config), o.features.ApplyTo(config, nil, nil))
	if err != nil {
		return nil, err
	}
	front, err := newFront(s, codecs, o)
	if err != nil {
		return nil, err
	}
	config.BuildHandlerChainFunc = front.chain
	config.RESTOptionsGetter = getter{s, codecs}
	return config, watchcache.Install(config, cacher.WithRawStorage(decoration.AsRaw(s.rawStorage)), watchcache.WithOptions(o.cache))
}

// find returns the served resource of a name and version, or nil.
func (s *server) find(name schema.GroupVersionResource) *resource {
	if r := s.resources[name.GroupResource()]; r != nil && r.Version == name.Version {
		return r
	}
	return nil
}

// rawStorage opens the storage under a cache.
func (s *server) rawStorage(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
	return decoration.Open(s.resources[r.Config.GroupResource].store.RawStorage, r)
}

// getter implements generic.RESTOptionsGetter.
type getter struct {
	server *server
	codecs serializer.CodecFactory
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g getter) GetRESTOptions(name schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	r, config := g.server.resources[name], storagebackend.Config{}
	if r == nil {
		return generic.RESTOptions{}, fmt.Errorf("%s is not served", name)
	}
	if r.typed {
		config.Codec = g.codecs.LegacyCodec(r.GroupVersion())
	}
	return generic.RESTOptions{StorageConfig: config.ForResource(name), ResourcePrefix: r.prefix()}, nil
}

func (s *server) install(scheme *runtime.Scheme, codecs serializer.CodecFactory, options generic.RESTOptionsGetter) error {
	groups := map[string]*genericapiserver.APIGroupInfo{}
	for _, r := range s.resources {
		group := groups[r.Group]
		if group == nil {
			made := genericapiserver.NewDefaultAPIGroupInfo(r.Group, scheme, metav1.ParameterCodec, codecs)
			group = &made
			groups[r.Group] = group
		}
		served, err := newRegistry(r, options)
		if err != nil {
			return fmt.Errorf("%s: %w", r.GroupResource(), err)
		}
		if group.VersionedResourcesStorageMap[r.Version] == nil {
			group.VersionedResourcesStorageMap[r.Version] = map[string]registryrest.Storage{}
		}
		group.VersionedResourcesStorageMap[r.Version][r.Resource] = served
	}
	for name, group := range groups {
		err := watchcache.PrepareAPIGroup(s.generic, group)
		switch {
		case err != nil:
		case name == "":
			err = s.generic.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, group)
		default:
			err = s.generic.InstallAPIGroup(group)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readOnly is a registry without write methods.
type readOnly struct {
	registryrest.Storage
	registryrest.Scoper
	registryrest.SingularNameProvider
	registryrest.Getter
	registryrest.Lister
	registryrest.Watcher
	of metav1.APIResource
}

// ShortNames implements rest.ShortNamesProvider.
func (r readOnly) ShortNames() []string { return r.of.ShortNames }

// Categories implements rest.CategoriesProvider.
func (r readOnly) Categories() []string { return r.of.Categories }

// strategy only implements NamespaceScoped, since the registry is never written.
type strategy struct {
	registryrest.RESTUpdateStrategy
	namespaced bool
}

// NamespaceScoped implements rest.RESTUpdateStrategy and rest.RESTDeleteStrategy.
func (s strategy) NamespaceScoped() bool { return s.namespaced }

func newRegistry(r *resource, options generic.RESTOptionsGetter) (registryrest.Storage, error) {
	store := &genericregistry.Store{
		NewFunc: r.newObject, NewListFunc: r.newList,
		DefaultQualifiedResource:  r.GroupResource(),
		SingularQualifiedResource: schema.GroupResource{Group: r.Group, Resource: r.of.SingularName},
		UpdateStrategy:            strategy{namespaced: r.of.Namespaced},
		DeleteStrategy:            strategy{namespaced: r.of.Namespaced},
		TableConvertor:            registryrest.NewDefaultTableConvertor(r.GroupResource()),
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options, AttrFunc: r.attributes}); err != nil {
		return nil, err
	}
	return readOnly{store, store, store, store, store, store, r.of}, nil
}

// run serves until the server's context ends. It calls announce with the address once all caches
// are ready.
func (s *server) run(announce func(address string)) error {
	defer s.stop()
	s.generic.AddPostStartHookOrDie("relay", func(hook genericapiserver.PostStartHookContext) error {
		go s.announce(hook, announce)
		go s.watchUpstream(hook)
		return nil
	})
	return s.generic.PrepareRun().RunWithContext(s.ctx)
}

// announce runs until the caches are ready or ctx ends.
func (s *server) announce(ctx context.Context, say func(string)) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for watchcache.Readiness(s.generic) != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	say("https://" + s.generic.SecureServingInfo.Listener.Addr().String())
}
