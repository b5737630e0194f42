// SPDX-License-Identifier: Apache-2.0

// Package sample runs Kubernetes' own sample API server on the cache, adopted as
// docs/adopting.md says: the server that most aggregated API servers were once
// copied from. The package is a module of its own, so that nobody's dependencies
// grow.
package sample

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/sample-apiserver/pkg/apis/wardle/v1alpha1"
	"k8s.io/sample-apiserver/pkg/apis/wardle/v1beta1"
	"k8s.io/sample-apiserver/pkg/apiserver"
	clientset "k8s.io/sample-apiserver/pkg/generated/clientset/versioned"
	informers "k8s.io/sample-apiserver/pkg/generated/informers/externalversions"
	sampleopenapi "k8s.io/sample-apiserver/pkg/generated/openapi"

	"github.com/kube-watchcache/watchcache/integration/internal/counting"
	watchcache "github.com/kube-watchcache/watchcache/server"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
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
const patience = time.Minute

// configure does what the sample's own Config does, without a cluster around it,
// and the one line.
func configure(t *testing.T, etcd []string) *genericapiserver.RecommendedConfig {
	t.Helper()
	options := genericoptions.NewRecommendedOptions("/registry/wardle.example.com", apiserver.Codecs.LegacyCodec(v1alpha1.SchemeGroupVersion))
	options.Etcd.StorageConfig.Transport.ServerList = etcd
	options.Authentication, options.Authorization, options.CoreAPI, options.Admission = nil, nil, nil, nil
	options.Features.EnablePriorityAndFairness = false
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	options.SecureServing.Listener = listener
	options.SecureServing.ServerCert.CertDirectory = t.TempDir()
	require.NoError(t, options.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}))

	config := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(sampleopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(sampleopenapi.GetOpenAPIDefinitions, namer)
	config.EffectiveVersion = compatibility.NewEffectiveVersionFromString("1.37", "", "")
	require.NoError(t, options.ApplyTo(config))
	require.NoError(t, watchcache.Install(&config.Config))
	return config
}

// serve runs the sample server until the test ends.
func serve(t *testing.T, etcd []string) *rest.Config {
	t.Helper()
	config := configure(t, etcd)
	sample, err := (&apiserver.Config{GenericConfig: config}).Complete().New()
	require.NoError(t, err)
	require.NoError(t, watchcache.AddReadinessHook(sample.GenericAPIServer))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- sample.GenericAPIServer.PrepareRun().RunWithContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return sample.GenericAPIServer.LoopbackClientConfig
}

// TestSampleAPIServer: its constructor makes a store of flunders for each of two
// versions. They are one cache, ready before the server says so; what is written
// as one version is seen as the other, by the sample's own generated informers.
func TestSampleAPIServer(t *testing.T) {
	before := goleak.IgnoreCurrent()
	etcd, err := embedded.Start(context.Background(), embedded.Config{Dir: filepath.Join(t.TempDir(), "etcd"), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, etcd.Close())
		goleak.VerifyNone(t, before,
			// Any server's health check for its log leaves this one.
			goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"))
	})
	config := serve(t, etcd.Endpoints())
	config.WarningHandlerWithContext = rest.NoWarnings{} // of deprecated versions
	client, err := clientset.NewForConfig(config)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.Eventually(t, func() bool {
		body, err := client.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil && string(body) == "ok"
	}, patience, 20*time.Millisecond)

	factory := informers.NewSharedInformerFactory(client, 0)
	flunders := factory.Wardle().V1beta1().Flunders()
	seen := flunders.Lister()
	require.NotNil(t, flunders.Informer())
	factory.StartWithContext(ctx)
	require.True(t, cache.WaitForCacheSync(ctx.Done(), flunders.Informer().HasSynced))

	const written = 20
	for i := range written {
		_, err := client.WardleV1alpha1().Flunders("lab").Create(ctx, &v1alpha1.Flunder{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("flunder-%d", i)},
			Spec:       v1alpha1.FlunderSpec{Reference: "other", ReferenceType: ref(v1alpha1.FlunderReferenceType)},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, client.WardleV1beta1().Flunders("lab").Delete(ctx, "flunder-0", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		flunder, err := seen.Flunders("lab").Get(fmt.Sprintf("flunder-%d", written-1))
		_, gone := seen.Flunders("lab").Get("flunder-0")
		return err == nil && flunder.Spec.FlunderReference == "other" && flunder.Spec.ReferenceType == v1beta1.FlunderReferenceType && errors.IsNotFound(gone)
	}, patience, 20*time.Millisecond)
	list, err := client.WardleV1beta1().Flunders("").List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, written-1)

	// Each resource was listed for one cache, once, and there is no other.
	require.EqualValues(t, 2, relists(t))
	require.EqualValues(t, 1, relists(t, "flunders"))
	require.EqualValues(t, 1, relists(t, "fischers"))
	cancel()
	factory.Shutdown()
}

func ref(t v1alpha1.ReferenceType) *v1alpha1.ReferenceType { return &t }

// relists is how often caches of a resource, or of all, were filled from storage.
func relists(t *testing.T, resource ...string) float64 {
	t.Helper()
	return counting.Metric(t, legacyregistry.DefaultGatherer, "relists_total", resource...)
}
