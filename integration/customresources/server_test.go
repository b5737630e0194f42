// SPDX-License-Identifier: Apache-2.0

// Package customresources runs the server of k8s.io/apiextensions-apiserver on the
// cache and on the cacher that k8s.io/apiserver ships, over one etcd, and compares
// their answers. The package is a module of its own, so that nobody's dependencies
// grow.
package customresources

import (
	"compress/gzip"
	"context"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	crdoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher"
	watchcache "github.com/kube-watchcache/watchcache/server"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Verbose() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	os.Exit(m.Run())
}

// patience bounds the wait for what is sure to happen.
const patience = 2 * time.Minute

// server is a running server of custom resources.
type server struct {
	config *rest.Config
	http   *http.Client
	// handler is what answers requests, everything but the connection.
	handler http.Handler
	// encoded is how many bytes the server's own handlers have written.
	encoded atomic.Int64
}

// countedResponse counts the bytes that are written to a response.
type countedResponse struct {
	http.ResponseWriter
	written *atomic.Int64
}

func (r countedResponse) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r countedResponse) Write(p []byte) (int, error) {
	r.written.Add(int64(len(p)))
	return r.ResponseWriter.Write(p)
}

// count counts what the API's handler writes, within all other handlers.
func (s *server) count(config *genericapiserver.Config) {
	build := config.BuildHandlerChainFunc
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			api.ServeHTTP(responsewriter.WrapForHTTP1Or2(countedResponse{w, &s.encoded}), r)
		}), c)
	}
}

// serve runs a server of custom resources until the test ends: on the cache, or
// without a line of ours.
func serve(t testing.TB, etcd []string, cached bool, install ...cacher.Option) *server {
	t.Helper()
	options := genericoptions.NewRecommendedOptions("/registry", apiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion))
	options.Etcd.StorageConfig.Transport.ServerList = etcd
	options.Authentication, options.Authorization, options.CoreAPI, options.Admission = nil, nil, nil, nil
	options.Features.EnablePriorityAndFairness = false
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	options.SecureServing.Listener = listener
	options.SecureServing.ServerCert.CertDirectory = t.TempDir()
	require.NoError(t, options.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}))

	config := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(apiextensionsopenapi.GetOpenAPIDefinitions,
		openapinamer.NewDefinitionNamer(apiserver.Scheme, scheme.Scheme))
	config.EffectiveVersion = compatibility.NewEffectiveVersionFromString("1.37", "", "")
	config.MergedResourceConfig = apiserver.DefaultAPIResourceConfigSource()
	require.NoError(t, options.ApplyTo(config))
	getter := crdoptions.NewCRDRESTOptionsGetter(*options.Etcd, config.ResourceTransformers, config.StorageObjectCountTracker)
	if cached {
		require.NoError(t, watchcache.Install(&config.Config, install...))
		getter, err = watchcache.CustomResources(&config.Config, getter)
		require.NoError(t, err)
	}
	s := &server{}
	s.count(&config.Config)
	completed := (&apiserver.Config{GenericConfig: config, ExtraConfig: apiserver.ExtraConfig{
		CRDRESTOptionsGetter: getter,
		ServiceResolver:      webhook.NewDefaultServiceResolver(),
		AuthResolverWrapper: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, config.LoopbackClientConfig,
			noop.NewTracerProvider()),
	}}).Complete()
	made, err := completed.New(genericapiserver.NewEmptyDelegate())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- made.GenericAPIServer.PrepareRun().RunWithContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	s.config, s.handler = made.GenericAPIServer.LoopbackClientConfig, made.GenericAPIServer.Handler
	s.http, err = rest.HTTPClientFor(s.config)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		response, err := s.http.Get(s.config.Host + "/readyz")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	}, patience, 20*time.Millisecond)
	return s
}

// answer is what a client sees of a response.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a GET, without what Go's client does about compression.
func (s *server) ask(t testing.TB, path, accept string, compressed bool) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.config.Host+path, nil)
	require.NoError(t, err)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	r.Header.Set("Accept-Encoding", "identity")
	if compressed {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	response, err := s.http.Do(r)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	body := io.Reader(response.Body)
	if response.Header.Get("Content-Encoding") == "gzip" {
		body, err = gzip.NewReader(body)
		require.NoError(t, err)
		response.Header.Del("Content-Length") // which net/http sets if the body is short
	}
	read, err := io.ReadAll(body)
	require.NoError(t, err)
	for _, own := range []string{"Date", "Audit-Id"} {
		response.Header.Del(own)
	}
	return answer{response.StatusCode, response.Header, read}
}
