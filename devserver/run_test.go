// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"

	"github.com/kube-watchcache/watchcache/server"
)

// TestRun: a server does not run in a directory where another one does; it is ready
// when Run says so, and ends with its context.
func TestRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)
	run := func(ctx context.Context, build func(*genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error), ready func(string, string)) error {
		options := genericoptions.NewRecommendedOptions("/registry", codecs.LegacyCodec())
		options.SecureServing.BindAddress, options.SecureServing.BindPort = loopback, 0
		config := genericapiserver.NewRecommendedConfig(codecs)
		config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
		return Run(ctx, dir, options, config, build, ready)
	}

	other, err := Open(t.Context(), Config{Dir: dir, BindAddress: loopback})
	require.NoError(t, err)
	require.ErrorContains(t, run(t.Context(), nil, nil), "--run-dir "+dir+": another server runs in this directory")
	require.NoError(t, other.Close())

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := false
	require.NoError(t, run(ctx, func(config *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error) {
		if err := server.Install(&config.Config); err != nil {
			return nil, err
		}
		generic, err := config.Complete().New("empty", genericapiserver.NewEmptyDelegate())
		if err != nil {
			return nil, err
		}
		return generic, server.AddReadinessHook(generic)
	}, func(where, kubeconfig string) {
		served = true
		defer cancel()
		parsed, err := url.Parse(where)
		require.NoError(t, err)
		require.NotEqual(t, "0", parsed.Port())
		require.Equal(t, filepath.Join(dir, "kubeconfig"), kubeconfig)
		require.FileExists(t, kubeconfig)
	}))
	require.True(t, served)
}
