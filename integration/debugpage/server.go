// SPDX-License-Identifier: Apache-2.0

// Package debugpage has a server for the tests of /debug/watchcache: the example
// API on storage in memory, over HTTPS, with several users. Its tests are about
// access; those of the page itself are in integration/browser, a module of its
// own.
package debugpage

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/util/compatibility"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/debug"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/install"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/openapi"
	registry "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/registry/device"
	"github.com/kube-watchcache/watchcache/integration/internal/authority"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/server"
)

// The users of the server.
const (
	// Viewer may see the page and nothing else; Operator may list devices as well.
	Viewer   = "viewer"
	Operator = "operator"
	// Robot may do all with devices, and may not see the page.
	Robot = "robot"
)

// Server is a running server.
type Server struct {
	// URL is https, host and port.
	URL string
	// Store is where the devices are, below "/fleet.example.com/devices/".
	Store *memstore.Store

	authority authority.Authority
	cancel    context.CancelFunc
	ended     chan error // gets the result of the goroutine that serves
}

// Start returns a server that serves. The caller calls Stop.
func Start(options ...cacher.Option) (*Server, error) {
	ca, err := authority.New()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{
		URL: "https://" + listener.Addr().String(), Store: memstore.New("/fleet.example.com/devices/", func() runtime.Object { return &fleet.Device{} }),
		authority: ca, ended: make(chan error, 1),
	}
	generic, err := s.build(listener, options)
	if err != nil {
		return nil, fmt.Errorf("building the server: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	prepared := generic.PrepareRun()
	go func() { s.ended <- prepared.RunWithContext(ctx) }() // Stop ends and awaits it
	return s, nil
}

// Stop ends the server and returns when it has ended.
func (s *Server) Stop() error {
	s.cancel()
	return <-s.ended
}

// Client returns a client with the user's certificate; "" is one without any.
func (s *Server) Client(name string) (*http.Client, error) {
	config := &tls.Config{RootCAs: s.authority.Pool()}
	if name != "" {
		pair, err := s.authority.Sign(name, false)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair.Certificate}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}, nil
}

func (s *Server) build(listener net.Listener, options []cacher.Option) (*genericapiserver.GenericAPIServer, error) {
	scheme := runtime.NewScheme()
	utilruntime.Must(install.AddToScheme(scheme))
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, unversioned)
	scheme.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	codecs := serializer.NewCodecFactory(scheme)

	config := genericapiserver.NewRecommendedConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	namer := openapinamer.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	config.RESTOptionsGetter = memory{storagebackend.NewDefaultConfig("/registry", codecs.LegacyCodec(fleetv1.SchemeGroupVersion))}
	if err := s.protect(listener, &config.Config); err != nil {
		return nil, err
	}
	raw := decoration.AsRaw(func(decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
		return s.Store, func() {}, nil
	})
	if err := server.Install(&config.Config, append([]cacher.Option{cacher.WithRawStorage(raw)}, options...)...); err != nil {
		return nil, err
	}
	generic, err := config.Complete().New("debugpage", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	devices, err := registry.NewStorage(scheme, config.RESTOptionsGetter)
	if err != nil {
		return nil, err
	}
	generic.RegisterDestroyFunc(devices.Device.Destroy)
	generic.ShutdownTimeout = 5 * time.Second
	group := genericapiserver.NewDefaultAPIGroupInfo(fleet.GroupName, scheme, metav1.ParameterCodec, codecs)
	group.VersionedResourcesStorageMap[fleetv1.SchemeGroupVersion.Version] = map[string]rest.Storage{"devices": devices.Device}
	return generic, generic.InstallAPIGroup(&group)
}

// memory gives all resources the storage that an option of the cache has.
type memory struct{ config *storagebackend.Config }

func (m memory) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	return generic.RESTOptions{StorageConfig: m.config.ForResource(resource), ResourcePrefix: resource.Group + "/" + resource.Resource}, nil
}

// protect lets the users in by certificate, and nobody else.
func (s *Server) protect(listener net.Listener, config *genericapiserver.Config) error {
	clients, err := dynamiccertificates.NewStaticCAContent("clients", s.authority.PEM)
	if err != nil {
		return err
	}
	own, err := s.authority.Sign("127.0.0.1", true)
	if err != nil {
		return err
	}
	serving := genericoptions.NewSecureServingOptions()
	serving.Listener, serving.BindAddress = listener, net.IPv4(127, 0, 0, 1)
	if serving.ServerCert.GeneratedCert, err = dynamiccertificates.NewStaticCertKeyContent("server", own.CertPEM, own.KeyPEM); err != nil {
		return err
	}
	if err := serving.WithLoopback().ApplyTo(&config.SecureServing, &config.LoopbackClientConfig); err != nil {
		return err
	}
	config.Authentication.Authenticator = x509.NewDynamic(clients.VerifyOptions, x509.CommonNameUserConversion)
	config.Authorization.Authorizer = authorizer.AuthorizerFunc(authorize)
	return config.Authentication.ApplyClientCert(clients, config.SecureServing)
}

// authorize says what each user may do.
func authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	page := !a.IsResourceRequest() && a.GetPath() == debug.Path && a.GetVerb() == "get"
	lists := a.IsResourceRequest() && a.GetVerb() == "list" && a.GetResource() == "devices" && a.GetAPIGroup() == fleet.GroupName && a.GetNamespace() == ""
	allowed := false
	switch a.GetUser().GetName() {
	case Viewer:
		allowed = page
	case Operator:
		allowed = page || lists
	case Robot:
		allowed = a.IsResourceRequest()
	default:
		allowed = slices.Contains(a.GetUser().GetGroups(), user.SystemPrivilegedGroup) // the server itself
	}
	if allowed {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionDeny, "not for this user", nil
}
