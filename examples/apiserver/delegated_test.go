// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"github.com/kube-watchcache/watchcache/internal/fakekube"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// TestAggregated runs the server as a cluster would: with an etcd of its own, and
// with a kube-apiserver that says who may do what.
func TestAggregated(t *testing.T) {
	dir := t.TempDir()
	etcd, err := embedded.Start(context.Background(), embedded.Config{Dir: filepath.Join(dir, "etcd"), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	ca, _, err := certutil.GenerateSelfSignedCertKey("front-proxy", nil, nil)
	require.NoError(t, err)
	kube := httptest.NewServer(fakekube.Cluster{ClientCA: string(ca)})
	t.Cleanup(func() {
		kube.CloseClientConnections()
		kube.Close()
	})
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, fakekube.WriteKubeconfig(kubeconfig, kube.URL, ""))

	announcement, _ := launch(t, "--etcd-servers="+strings.Join(etcd.Endpoints(), ","),
		"--bind-address=127.0.0.1", "--secure-port="+port(t), "--cert-dir="+filepath.Join(dir, "certs"),
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	url := strings.TrimSpace(strings.TrimPrefix(announcement, "Serving fleet.example.com on "))
	as := func(token string) *rest.Config {
		return &rest.Config{Host: url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "certs", "apiserver.crt")}}
	}

	code, body := request(t, as(""), http.MethodGet, "/readyz", "")
	require.Equal(t, http.StatusOK, code, body)
	code, _ = request(t, as("eve"), http.MethodGet, devices, "")
	require.Equal(t, http.StatusUnauthorized, code)
	code, _ = request(t, as("bob"), http.MethodGet, devices, "")
	require.Equal(t, http.StatusForbidden, code)
	code, body = request(t, as("alice"), http.MethodPost, devices, gadget)
	require.Equal(t, http.StatusCreated, code, body)
	code, body = request(t, as("alice"), http.MethodGet, devices, "")
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, body, `"name":"a"`)
	// The admission plugins of an aggregated server are on.
	code, body = request(t, as("alice"), http.MethodPost, strings.Replace(devices, "lab", "nowhere", 1), gadget)
	require.Equal(t, http.StatusNotFound, code, body)
}

// port returns one that was free a moment ago.
func port(t *testing.T) string {
	t.Helper()
	address := closedPort(t)
	return address[strings.LastIndex(address, ":")+1:]
}
