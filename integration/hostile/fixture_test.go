// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/authority"
	"github.com/kube-watchcache/watchcache/internal/fakekube"
)

// The users of the server, which are told by their certificates.
const (
	// alice may do everything; operator may see pages about the server, and no device.
	alice, operator = "alice", "operator"
	// reader may do everything, and means no harm.
	reader = "reader"
	// bound may read devices of the namespace ours, and nothing else.
	bound = "bound"
	// nobody is known and may do nothing.
	nobody = "nobody"
	// without has no certificate, stranger one of another authority.
	without, stranger = "", "stranger"
)

// The namespaces. The names of all begin as ours does.
const (
	ours     = "team-a"
	theirs   = "team-a-b"
	likeOurs = "team-ab"
)

// allows is what the cluster says about the users.
func allows(a authorizationv1.SubjectAccessReviewSpec) bool {
	switch a.User {
	case alice, reader:
		return true
	case operator:
		return a.NonResourceAttributes != nil
	case bound:
		r := a.ResourceAttributes
		return r != nil && r.Namespace == ours && r.Resource == "devices" && (r.Verb == "get" || r.Verb == "list" || r.Verb == "watch")
	}
	return false
}

// fixture is an aggregated server with several users, on an etcd that can be
// paused.
type fixture struct {
	*apiserver.Process
	etcd      *etcdserver.Server
	direct    *clientv3.Client
	authority authority.Authority
	foreign   authority.Authority
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	_, err := testserver.Path()
	require.NoError(t, err)
	f := &fixture{}
	for _, a := range []*authority.Authority{&f.authority, &f.foreign} {
		*a, err = authority.New()
		require.NoError(t, err)
	}
	f.etcd, f.direct = startEtcd(t)
	kube := httptest.NewServer(fakekube.Cluster{ClientCA: string(f.authority.PEM), Allows: allows, Namespaces: []string{ours, theirs, likeOurs}})
	t.Cleanup(func() {
		kube.CloseClientConnections()
		kube.Close()
	})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, fakekube.WriteKubeconfig(kubeconfig, kube.URL, ""))
	f.Process = testserver.StartAggregated(t, apiserver.Ours, f.etcd.Endpoints(), kubeconfig)
	// The server asks the cluster for the authority while it serves already.
	client := f.client(t, alice, true)
	require.Eventually(t, func() bool {
		a, err := f.ask(t.Context(), client, everyNS, asJSON, false, "")
		client.CloseIdleConnections()
		return err == nil && a.status == http.StatusOK
	}, patience, 50*time.Millisecond)
	return f
}

// startEtcd starts an etcd that can be paused, and a client of it.
func startEtcd(t *testing.T) (*etcdserver.Server, *clientv3.Client) {
	t.Helper()
	require.NoError(t, etcdserver.Prepare(etcdserver.Process))
	etcd := etcdserver.Start(t, etcdserver.Config{Mode: etcdserver.Process, Dir: t.TempDir()})
	direct, err := clientv3.New(clientv3.Config{Endpoints: etcd.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = direct.Close() })
	return etcd, direct
}

// tls is how a user connects.
func (f *fixture) tls(t *testing.T, user string) *tls.Config {
	t.Helper()
	pem, err := os.ReadFile(f.Config.CAFile)
	require.NoError(t, err)
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	require.True(t, config.RootCAs.AppendCertsFromPEM(pem))
	signs, name := f.authority, user
	switch user {
	case without:
		return config
	case stranger:
		signs, name = f.foreign, alice // who says that it is alice
	}
	signed, err := signs.Sign(name, false)
	require.NoError(t, err)
	config.Certificates = []tls.Certificate{signed.Certificate}
	return config
}

// client gives a user an HTTP client with connections of its own, which leaves
// answers compressed.
func (f *fixture) client(t *testing.T, user string, http2 bool) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: f.tls(t, user), DisableCompression: true, Protocols: &http.Protocols{}}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetHTTP2(http2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// answer is a response that was read, and inflated if it was compressed.
type answer struct {
	status     int
	header     http.Header
	body       string
	compressed bool
}

// ask sends a GET, and reads the answer up to a mark in it; without one to its end.
func (f *fixture) ask(ctx context.Context, client *http.Client, path, accept string, compressed bool, mark string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.Config.Host+path, nil)
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Accept", accept)
	if compressed {
		request.Header.Set("Accept-Encoding", "gzip")
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	a := answer{status: response.StatusCode, header: response.Header, compressed: response.Header.Get("Content-Encoding") == "gzip"}
	body := io.Reader(response.Body)
	if a.compressed {
		if body, err = gzip.NewReader(body); err != nil {
			return a, err
		}
	}
	var read strings.Builder
	for piece := make([]byte, 32<<10); ; {
		n, err := body.Read(piece)
		read.Write(piece[:n])
		a.body = read.String()
		if err == io.EOF || mark != "" && strings.Contains(a.body[max(0, len(a.body)-n-len(mark)):], mark) {
			return a, nil
		}
		if err != nil {
			return a, err
		}
	}
}

// secret is in each device of a namespace, and in nothing else.
func secret(namespace string) string { return "<secret of " + namespace + ">" }

// put stores a device that has its namespace's secret.
func (f *fixture) put(ctx context.Context, namespace, name string, change int) error {
	return f.putPadded(ctx, namespace, name, change, strings.Repeat("x", 3000))
}

// putPadded is put with an annotation of the device.
func (f *fixture) putPadded(ctx context.Context, namespace, name string, change int, padding string) error {
	device := &fleetv1.Device{
		TypeMeta: metav1.TypeMeta{Kind: "Device", APIVersion: fleetv1.SchemeGroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(namespace + name), Labels: map[string]string{"lane": fmt.Sprint(change % 3)},
			// json.Marshal escapes "<" as the server does.
			Annotations: map[string]string{"padding": padding, "secret": secret(namespace), "change": fmt.Sprint(change)},
		},
		Spec: fleetv1.DeviceSpec{Zone: "zone", Owner: "owner", Model: secret(namespace), Firmware: fleetv1.Firmware{Channel: fleetv1.FirmwareStable}},
	}
	device.Status.Phase = fleetv1.DevicePending
	value, err := json.Marshal(device)
	if err != nil {
		return err
	}
	_, err = f.direct.Put(ctx, stored(namespace, name), string(value))
	return err
}

// stored is where etcd has a device.
func stored(namespace, name string) string {
	return "/registry/fleet.example.com/devices/" + namespace + "/" + name
}

// leaks is what an answer must not have: the secrets of other namespaces than
// ours, as JSON or protobuf writes them.
func leaks(a answer) bool {
	text := a.body + fmt.Sprint(a.header)
	for _, namespace := range []string{theirs, likeOurs} {
		if strings.Contains(text, "secret of "+namespace) {
			return true
		}
	}
	return false
}

// group runs goroutines that end with the test.
type group struct {
	sync.WaitGroup
	cancel context.CancelFunc
}

func background(t *testing.T) (context.Context, *group) {
	ctx, cancel := context.WithCancel(t.Context())
	g := &group{cancel: cancel}
	t.Cleanup(g.stop)
	return ctx, g
}

func (g *group) stop() {
	g.cancel()
	g.Wait()
}
