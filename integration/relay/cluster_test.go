// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	authorizationv1 "k8s.io/api/authorization/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/authority"
	"github.com/kube-watchcache/watchcache/integration/internal/child"
	"github.com/kube-watchcache/watchcache/integration/internal/proxy"
	"github.com/kube-watchcache/watchcache/internal/fakekube"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// patience bounds the wait for what is sure to happen.
const patience = 2 * time.Minute

// upstream is a cluster of one API server, at one address for as long as the test runs.
type upstream struct {
	etcd    *clientv3.Client
	process *apiserver.Process
	front   *httptest.Server
	// users signs client certificates that the cluster trusts.
	users authority.Authority
	// network is between the relays and the front.
	network *proxy.Proxy
	// direct has a client's full rights, past the network.
	direct *versioned.Clientset

	mu struct {
		sync.Mutex
		allows    func(authorizationv1.SubjectAccessReviewSpec) bool
		intercept func(http.ResponseWriter, *http.Request) bool
		requests  []string     // for devices
		core      http.Handler // of /api; nil: there is none
	}
}

// startUpstream starts a cluster whose API server has the cache.
func startUpstream(t *testing.T, cache string, flags ...string) *upstream {
	t.Helper()
	etcd, err := embedded.Start(context.Background(), embedded.Config{Dir: filepath.Join(t.TempDir(), "etcd"), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	client, err := clientv3.New(clientv3.Config{Endpoints: etcd.Endpoints(), DialTimeout: patience})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	u := &upstream{etcd: client, process: server.Start(t, cache, etcd.Endpoints(), flags...)}
	u.direct = u.process.Devices(t)
	u.users, err = authority.New()
	require.NoError(t, err)

	target, err := url.Parse(u.process.Config.Host)
	require.NoError(t, err)
	forward := &httputil.ReverseProxy{
		Transport: u.process.Connect(t).Transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Authorization")
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // as a server that is gone
	}
	u.front = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { u.serve(forward, w, r) }))
	u.front.EnableHTTP2, u.front.TLS = true, &tls.Config{ClientAuth: tls.RequestClientCert}
	u.front.Config.ErrorLog = log.New(io.Discard, "", 0)
	u.front.StartTLS()
	t.Cleanup(func() {
		u.front.CloseClientConnections()
		u.front.Close()
	})
	u.network, err = proxy.Listen(u.front.Listener.Addr().String(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, u.network.Close()) })
	return u
}

// serve answers as a kube-apiserver does: reviews by what the test allows, all else by the
// API server, for the relay and for whom the test allows.
func (u *upstream) serve(forward http.Handler, w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	allows, intercept, core := u.mu.allows, u.mu.intercept, u.mu.core
	if strings.HasPrefix(r.URL.Path, "/apis/fleet.example.com/") && strings.Contains(r.URL.Path, "/devices") {
		u.mu.requests = append(u.mu.requests, r.URL.RequestURI())
	}
	u.mu.Unlock()
	if intercept != nil && intercept(w, r) {
		return
	}
	kube := fakekube.Cluster{ClientCA: string(u.users.PEM), Allows: allows}
	switch user := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); {
	case user == "relay" && (strings.HasSuffix(r.URL.Path, "reviews") || strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/kube-system/configmaps")):
		kube.ServeHTTP(w, r)
	case r.URL.Path == "/version":
		_, _ = w.Write([]byte(`{"major":"1","minor":"37","gitVersion":"v1.37.2"}`))
	case core != nil && (r.URL.Path == "/api" || strings.HasPrefix(r.URL.Path, "/api/")):
		core.ServeHTTP(w, r)
	case user == "relay" || user == "alice":
		forward.ServeHTTP(w, r)
	default:
		http.Error(w, fmt.Sprintf("%q may not do that", user), http.StatusForbidden)
	}
}

func (u *upstream) authority() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: u.front.Certificate().Raw}))
}

// config is the way to the upstream for a user, past the network.
func (u *upstream) config(user string) *rest.Config {
	return &rest.Config{Host: u.front.URL, BearerToken: user, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: []byte(u.authority())}}
}

// allow sets who may do what. nil: alice everything.
func (u *upstream) allow(allows func(authorizationv1.SubjectAccessReviewSpec) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.allows = allows
}

// intercept answers requests in the place of the cluster; nil: the cluster does.
func (u *upstream) intercept(f func(http.ResponseWriter, *http.Request) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.intercept = f
}

// requests returns the requests for devices since the last call.
func (u *upstream) requests() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	requests := u.mu.requests
	u.mu.requests = nil
	return requests
}

// relay is a process, on one port for as long as the test runs.
type relay struct {
	path   string
	args   []string
	dir    string
	host   string
	log    child.Tail
	cmd    *exec.Cmd
	exited chan struct{}
}

// startRelay starts a relay of the devices and returns when it serves. It is killed with
// the test.
func (u *upstream) startRelay(t *testing.T, flags ...string) *relay {
	t.Helper()
	path, err := command.Path()
	require.NoError(t, err)
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	own, err := u.users.Sign("relay", false)
	require.NoError(t, err)
	require.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"kube": {Server: "https://" + u.network.Address(), CertificateAuthorityData: []byte(u.authority())}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"relay": {Token: "relay", ClientCertificateData: own.CertPEM, ClientKeyData: own.KeyPEM}},
		Contexts:       map[string]*clientcmdapi.Context{"kube": {Cluster: "kube", AuthInfo: "relay"}},
		CurrentContext: "kube",
	}, kubeconfig))
	listener, err := net.Listen("tcp", "127.0.0.1:0") // somebody else may take the port between the look and the use
	require.NoError(t, err)
	port := listener.Addr().(*net.TCPAddr).Port
	require.NoError(t, listener.Close())
	r := &relay{path: path, dir: dir, args: append([]string{
		"--kubeconfig=" + kubeconfig, "--resources=devices.fleet.example.com", "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir=" + filepath.Join(dir, "certificates"),
		"--authorization-webhook-cache-authorized-ttl=1s", "--authorization-webhook-cache-unauthorized-ttl=1s",
	}, flags...)}
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("the end of the output of the relay:\n%s", r.log.String())
		}
	})
	require.NoError(t, r.start())
	return r
}

// start starts the process, which does not run, and returns when it says that it serves.
func (r *relay) start() error {
	cmd := exec.Command(r.path, r.args...)
	cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1 exitcode=66")
	cmd.Stderr, cmd.SysProcAttr = &r.log, child.Attributes()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	serving, exited := make(chan string, 1), make(chan struct{})
	r.cmd, r.exited = cmd, exited
	// Ends with the process.
	go func() {
		defer close(exited)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if _, host, ok := strings.Cut(lines.Text(), " on "); ok {
				serving <- host
			}
		}
		_ = cmd.Wait()
	}()
	select {
	case r.host = <-serving:
		return nil
	case <-exited:
		return fmt.Errorf("the relay ended before it served:\n%s", r.log.String())
	case <-time.After(patience):
		return fmt.Errorf("the relay does not serve:\n%s", r.log.String())
	}
}

// kill ends the process at once and waits for its end.
func (r *relay) kill() {
	if r.cmd != nil {
		_ = r.cmd.Process.Kill()
		<-r.exited
	}
}

// config is the way to the relay for a user.
func (r *relay) config(user string) *rest.Config {
	return &rest.Config{
		Host: r.host, BearerToken: user, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(r.dir, "certificates", "apiserver.crt")},
	}
}

// devices returns a user's client with connections of its own.
func (r *relay) devices(t testing.TB, user string) *versioned.Clientset {
	t.Helper()
	config := r.config(user)
	client, err := versioned.NewForConfigAndClient(config, apiserver.Connect(t, config))
	require.NoError(t, err)
	return client
}

// ask sends a GET as a user, with headers NAME:VALUE, and returns status and body.
func (r *relay) ask(t testing.TB, user, path string, headers ...string) (int, string) {
	t.Helper()
	return r.send(t, user, http.MethodGet, path, "", headers...)
}

func (r *relay) send(t testing.TB, user, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	return exchange(t, r.config(user), method, path, body, headers...)
}

// exchange sends a request with headers NAME:VALUE, and returns status and body of the
// response.
func exchange(t testing.TB, config *rest.Config, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return finish(t, begin(ctx, t, client, method, config.Host+path, body, headers...))
}

// begin returns a response whose body is still to come.
func begin(ctx context.Context, t testing.TB, client *http.Client, method, url, body string, headers ...string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		request.Header.Set(name, value)
	}
	response, err := client.Do(request)
	require.NoError(t, err)
	return response
}

// finish waits for the end of a response.
func finish(t testing.TB, response *http.Response) (int, string) {
	t.Helper()
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err, "%s as %v after %d bytes", response.Request.URL, response.Request.Header, len(body))
	return response.StatusCode, string(body)
}

// fetch returns what a user gets of a server.
func fetch(t testing.TB, config *rest.Config, path, accept string) string {
	t.Helper()
	code, body := exchange(t, config, http.MethodGet, path, "", "Accept:"+accept)
	require.Equal(t, http.StatusOK, code, body)
	return body
}
