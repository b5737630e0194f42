// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/server"
)

func TestMain(m *testing.M) {
	// Before any goroutine logs.
	if err := server.ConfigureLogs(0); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// buffer is what a running server writes to while a test reads.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// start runs the server in this process and returns its kubeconfig, when it has
// announced it, and what stops it.
func start(t *testing.T, args ...string) (kubeconfig string, stop func()) {
	t.Helper()
	stdout, stop := launch(t, args...)
	require.Contains(t, stdout, "Ctrl-C")
	return filepath.Join(flagValue(args, "--run-dir"), "kubeconfig"), stop
}

// launch runs the server in this process and returns what it says when it is ready.
func launch(t *testing.T, args ...string) (announcement string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var stdout, stderr buffer
	status := make(chan int, 1)
	go func() { status <- run(ctx, args, &stdout, &stderr) }()
	require.Eventually(t, func() bool {
		return stdout.String() != "" || len(status) > 0
	}, time.Minute, 10*time.Millisecond)
	require.Empty(t, stderr.String())
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case got := <-status:
			require.Zero(t, got, stderr.String())
		case <-time.After(time.Minute):
			assert.Fail(t, "the server does not stop")
		}
	})
	t.Cleanup(stop)
	return stdout.String(), stop
}

func flagValue(args []string, name string) string {
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, name+"="); ok {
			return value
		}
	}
	return ""
}

// fails runs the server, which must end by itself with one line on stderr, and
// returns that line.
func fails(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var stdout, stderr buffer
	require.Equal(t, 1, run(ctx, args, &stdout, &stderr))
	require.NoError(t, ctx.Err(), "the server ran")
	require.Empty(t, stdout.String())
	require.Equal(t, 1, strings.Count(stderr.String(), "\n"), stderr.String())
	return stderr.String()
}

func request(t *testing.T, config *rest.Config, method, path, body string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	req, err := http.NewRequest(method, config.Host+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	response, err := client.Do(req)
	require.NoError(t, err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(content)
}

func load(t *testing.T, kubeconfig string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	return config
}

const (
	devices = "/apis/fleet.example.com/v1/namespaces/lab/devices"
	gadget  = `{"apiVersion":"fleet.example.com/v1","kind":"Device","metadata":{"name":"a"},"spec":{"zone":"z","owner":"o","model":"m"}}`
)

// TestRestart: what was written is there after a restart, and a client from before
// it still gets in.
func TestRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	kubeconfig, stop := start(t, "--run-dir="+dir, "--secure-port=0")
	info, err := os.Stat(kubeconfig)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	before := load(t, kubeconfig)
	code, body := request(t, before, http.MethodPost, devices, gadget)
	require.Equal(t, http.StatusCreated, code, body)
	stop()

	kubeconfig, _ = start(t, "--run-dir="+dir, "--secure-port=0")
	after := load(t, kubeconfig)
	before.Host = after.Host
	for _, config := range []*rest.Config{before, after} {
		code, body = request(t, config, http.MethodGet, devices+"/a", "")
		require.Equal(t, http.StatusOK, code, body)
		require.Contains(t, body, `"channel":"stable"`)
	}
	code, body = request(t, after, http.MethodGet, "/metrics", "")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, `watchcache_objects{group="fleet.example.com",resource="devices"} 1`)
	code, body = request(t, after, http.MethodGet, "/readyz?verbose", "")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "[+]watchcache ok")
}

// TestEitherForm: a client that accepts protobuf as well, as those of Kubernetes do, gets
// JSON, since the types have no protobuf. The namespace controller deletes this way.
func TestEitherForm(t *testing.T) {
	kubeconfig, _ := start(t, "--run-dir="+filepath.Join(t.TempDir(), "run"), "--secure-port=0")
	config := load(t, kubeconfig)
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return eitherForm{inner} })
	for _, path := range []string{devices, strings.Replace(devices, "/v1/", "/v1beta1/", 1)} {
		object := strings.Replace(gadget, "example.com/v1", "example.com/"+strings.Split(path, "/")[3], 1)
		code, body := request(t, config, http.MethodPost, path, object)
		require.Equal(t, http.StatusCreated, code, body)
		code, body = request(t, config, http.MethodGet, path+"?watch=1&resourceVersion=0&timeoutSeconds=5", "")
		require.Equal(t, http.StatusOK, code, body)
		require.Contains(t, body, `"type":"ADDED"`)
		code, body = request(t, config, http.MethodDelete, path, "")
		require.Equal(t, http.StatusOK, code, body)
		require.Contains(t, body, `"kind":"DeviceList"`)
		code, body = request(t, config, http.MethodGet, path+"/a", "")
		require.Equal(t, http.StatusNotFound, code, body)
	}
}

// eitherForm is a transport of requests for protobuf or JSON.
type eitherForm struct{ http.RoundTripper }

func (e eitherForm) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Accept", "application/vnd.kubernetes.protobuf,application/json")
	return e.RoundTripper.RoundTrip(r)
}

// TestOnlyTheClientHasAccess: not even health checks answer anybody else.
func TestOnlyTheClientHasAccess(t *testing.T) {
	kubeconfig, _ := start(t, "--run-dir="+filepath.Join(t.TempDir(), "run"), "--secure-port=0")
	other, _ := start(t, "--run-dir="+filepath.Join(t.TempDir(), "run"), "--secure-port=0")
	client := load(t, kubeconfig)

	anonymous := rest.AnonymousClientConfig(client)
	stranger := rest.CopyConfig(client)
	foreign := load(t, other)
	stranger.CertData, stranger.KeyData = foreign.CertData, foreign.KeyData
	token := rest.AnonymousClientConfig(client)
	token.BearerToken = "guess"
	for _, path := range []string{"/", "/livez", "/readyz", "/healthz", "/metrics", "/version", "/apis", "/openapi/v2", devices, "/debug/pprof/"} {
		for name, config := range map[string]*rest.Config{"anonymous": anonymous, "stranger": stranger, "token": token} {
			code, _ := request(t, config, http.MethodGet, path, "")
			require.Equal(t, http.StatusUnauthorized, code, "%s %s", name, path)
		}
		code, body := request(t, client, http.MethodGet, path, "")
		require.Equal(t, http.StatusOK, code, body)
	}
	bob := rest.CopyConfig(client)
	bob.Impersonate.UserName = "bob"
	code, _ := request(t, bob, http.MethodGet, devices, "")
	require.Equal(t, http.StatusForbidden, code)
}

// TestErrors: each is one line that names the flag, and no kubeconfig is written.
func TestErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { taken.Close() })
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	base := t.TempDir()
	dir := filepath.Join(base, "run")
	file := filepath.Join(base, "file")
	require.NoError(t, os.WriteFile(file, []byte("no certificate"), 0o600))
	closed := closedPort(t)

	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"unknown flag", []string{"--frobnicate"}, "unknown flag: --frobnicate; --help lists the flags"},
		{"argument", []string{"serve"}, `"serve"`},
		{"bind address", []string{"--run-dir=" + dir, "--bind-address=0.0.0.0"}, "--bind-address: 0.0.0.0"},
		{"port in use", []string{"--run-dir=" + dir, "--secure-port=" + port}, "--secure-port " + port},
		{"run dir is a file", []string{"--run-dir=" + file, "--secure-port=0"}, "--run-dir " + file},
		{"no etcd", []string{"--etcd-servers=http://" + closed}, "--etcd-servers http://" + closed},
		{"no etcd, standalone", []string{"--etcd-servers=http://" + closed, "--standalone", "--run-dir=" + dir}, "--etcd-servers http://" + closed},
		{"etcd CA", []string{"--etcd-servers=https://" + closed, "--etcd-cafile=" + file}, file},
		{"serving pair", []string{"--etcd-servers=http://" + closed, "--tls-cert-file=" + file, "--tls-private-key-file=" + file}, "--tls-cert-file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, fails(t, test.args...), test.want)
			require.NoDirExists(t, dir)
		})
	}
}

// closedPort is an address where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}
