// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	restclient "k8s.io/client-go/rest"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/devserver"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/install"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/openapi"
	registry "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/registry/device"
	"github.com/kube-watchcache/watchcache/server"
)

// registryPrefix is where the keys of the server begin in etcd; group, resource,
// namespace and name follow.
const registryPrefix = "/registry"

// watchGracePeriod is for watches when the server stops. They are told to end at
// once.
const watchGracePeriod = time.Second

// scheme and codecs are those of the server. storageCodec is what it stores with.
var (
	scheme       = newScheme()
	codecs       = serializer.NewCodecFactory(scheme)
	storageCodec = codecs.LegacyCodec(fleetv1.SchemeGroupVersion)
)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(install.AddToScheme(s))
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(s, unversioned)
	s.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	return s
}

// apiserver is the API of examples/apiserver in this process, with options for
// the cache that the example does not expose, and with the cache in reach.
type apiserver struct {
	// address is host and port.
	address string
	// client says how to get in, at that address.
	client *restclient.Config
	// cacher is the cache of the devices, in all versions.
	cacher *cacher.Cacher

	env    *devserver.Environment
	cancel context.CancelFunc
	// ended gets the result of the goroutine that serves, which startServer starts
	// and stop ends and awaits.
	ended chan error
	// stop ends the server as Ctrl-C does. stop may be called more than once.
	stop func() error
}

// startServer returns when the server is ready to serve. Credentials are kept in
// dir, so that clients of one server can use the next.
func startServer(ctx context.Context, dir string, etcd []string, options ...cacher.Option) (_ *apiserver, err error) {
	env, err := devserver.Open(ctx, devserver.Config{Dir: dir, BindAddress: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	s := &apiserver{env: env, address: strings.TrimPrefix(env.URL(), "https://"), client: env.ClientConfig(), ended: make(chan error, 1)}
	s.stop = sync.OnceValue(s.end)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	generic, err := s.build(etcd, options)
	if err != nil {
		return nil, err
	}
	serveCtx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	prepared := generic.PrepareRun()
	go func() { s.ended <- prepared.RunWithContext(serveCtx) }()
	return s, s.waitReady(ctx)
}

// build does what the example's main does.
func (s *apiserver) build(etcd []string, options []cacher.Option) (_ *genericapiserver.GenericAPIServer, err error) {
	config, err := s.configure(etcd)
	if err != nil {
		return nil, err
	}
	if err := server.Install(&config.Config, options...); err != nil {
		return nil, err
	}
	generic, err := config.Complete().New("clientgo", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			generic.Destroy()
		}
	}()
	devices, err := registry.NewStorage(scheme, config.RESTOptionsGetter)
	if err != nil {
		return nil, err
	}
	generic.RegisterDestroyFunc(devices.Device.Destroy)
	c, ok := devices.Device.Storage.Storage.(*cacher.Cacher)
	if !ok {
		return nil, fmt.Errorf("devices are stored in a %T, not in our cache", devices.Device.Storage.Storage)
	}
	s.cacher = c
	group := genericapiserver.NewDefaultAPIGroupInfo(fleet.GroupName, scheme, metav1.ParameterCodec, codecs)
	resources := map[string]rest.Storage{"devices": devices.Device, "devices/status": devices.Status}
	group.VersionedResourcesStorageMap[fleetv1.SchemeGroupVersion.Version] = resources
	group.VersionedResourcesStorageMap[v1beta1.SchemeGroupVersion.Version] = resources
	if err := generic.InstallAPIGroup(&group); err != nil {
		return nil, err
	}
	generic.ShutdownTimeout = 5 * time.Second
	return generic, server.AddReadinessHook(generic)
}

// configure makes the configuration of a server that lets only its own client in.
func (s *apiserver) configure(etcd []string) (*genericapiserver.RecommendedConfig, error) {
	config := genericapiserver.NewRecommendedConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.ShutdownWatchTerminationGracePeriod = watchGracePeriod
	namer := openapinamer.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)

	o := genericoptions.NewRecommendedOptions(registryPrefix, storageCodec)
	o.Etcd.StorageConfig.EncodeVersioner = fleetv1.SchemeGroupVersion
	o.Etcd.StorageConfig.Transport.ServerList = etcd
	return config, s.env.Apply(o, config)
}

// waitReady returns when /readyz says so.
func (s *apiserver) waitReady(ctx context.Context) error {
	client, err := restclient.HTTPClientFor(s.client)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	var last error
	err = wait.PollUntilContextTimeout(ctx, pollInterval, patience, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-s.ended:
			s.ended <- err
			return false, fmt.Errorf("the server ended: %w", err)
		default:
		}
		last = s.ready(ctx, client)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("the server is not ready: %w: %w", err, last)
	}
	return nil
}

func (s *apiserver) ready(ctx context.Context, client *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.client.Host+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(req)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

func (s *apiserver) end() error {
	var err error
	if s.cancel != nil {
		s.cancel()
		select {
		case err = <-s.ended:
		case <-time.After(patience):
			err = fmt.Errorf("the server has not ended after %s", patience)
		}
	}
	return errors.Join(err, s.env.Close())
}
