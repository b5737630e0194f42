// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sample

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certutil "k8s.io/client-go/util/cert"

	"github.com/kube-watchcache/watchcache/integration/internal/pages"
	"github.com/kube-watchcache/watchcache/internal/fakekube"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

const (
	root = "../.."
	page = root + "/docs/adopting.md"
	// started is the file of the sample API server that the page changes.
	started = "pkg/cmd/server/start.go"
)

// TestAdoptingPage takes the sample API server from the module cache, does what
// docs/adopting.md says with a checkout, builds it and runs it with the flags of the page,
// on an etcd and beside a stand-in for the kube-apiserver.
func TestAdoptingPage(t *testing.T) {
	replace := replaceCommand(t)
	checkout, err := filepath.Abs(root)
	require.NoError(t, err)
	require.Contains(t, replace, "../watchcache")
	dir, build, run, check := followPage(t)
	shell(t, dir, strings.ReplaceAll(replace, "../watchcache", checkout))
	compile(t, dir, build)
	serveAsCluster(t, dir, run, check)
}

// replaceCommand returns the page's command that gets the cache of a checkout.
func replaceCommand(t *testing.T) string {
	t.Helper()
	blocks, err := pages.Section(page, "Adopting the cache")
	require.NoError(t, err)
	require.Len(t, blocks, 2)
	return strings.TrimSpace(blocks[1].Text)
}

// followPage returns the sample API server with the changes of the page, and the page's
// commands that build, run and check it.
func followPage(t *testing.T) (dir, build, run, check string) {
	t.Helper()
	blocks, err := pages.Section(page, "From sample-apiserver's layout")
	require.NoError(t, err)
	var commands []string
	dir = checkOut(t)
	source, err := os.ReadFile(filepath.Join(dir, started))
	require.NoError(t, err)
	text := string(source)
	for _, block := range blocks {
		switch block.Language {
		case "sh":
			commands = append(commands, strings.TrimSpace(block.Text))
		case "diff":
			text, err = pages.Apply(text, block.Text)
			require.NoError(t, err)
		}
	}
	require.NotEqual(t, string(source), text)
	require.NoError(t, os.WriteFile(filepath.Join(dir, started), []byte(text), 0o600))
	require.Len(t, commands, 3)
	return dir, commands[0], commands[1], commands[2]
}

// checkOut copies the sample API server to a directory that can be written to, and
// returns that.
func checkOut(t *testing.T) string {
	t.Helper()
	from := strings.TrimSpace(shell(t, ".", "GOFLAGS=-mod=mod go list -m -f '{{.Dir}}' k8s.io/sample-apiserver"))
	dir := filepath.Join(t.TempDir(), "sample-apiserver")
	require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
	shell(t, dir, "chmod -R u+w .")
	return dir
}

var offline = regexp.MustCompile("dial tcp|module lookup disabled|i/o timeout|connection refused")

// compile runs the page's last step. Its go mod tidy asks the module proxy for
// modules that only this step needs. On a machine without a way there, the
// requirements are those of this module, which are the same.
func compile(t *testing.T, dir, build string) {
	t.Helper()
	_, err := pages.Shell(dir, build)
	if err == nil {
		require.Empty(t, changed(t, dir), "the page says that no version is raised, and one module is added")
		// go list instead of go build: the vendored packages are the same, and compiling them from
		// this folder would not use the build cache.
		vendored, err := pages.Shell(dir, "go mod vendor && go list -mod=vendor -deps . >/dev/null")
		require.NoError(t, err, vendored)
		return
	}
	require.Regexp(t, offline, err.Error())
	t.Log("no way to a module proxy: building with the requirements of integration/sample")
	checkout, err := filepath.Abs(root)
	require.NoError(t, err)
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	shell(t, dir, "go mod edit -module k8s.io/sample-apiserver -droprequire k8s.io/sample-apiserver -replace github.com/kube-watchcache/watchcache="+checkout+
		"\ngo build -mod=mod .")
}

// requirement is a line of a go.mod.
var requirement = regexp.MustCompile(`(?m)^\t(\S+) (v\S+)`)

// changed returns the requirements of the server that are not those of the sample API
// server, but for the one of the cache.
func changed(t *testing.T, dir string) map[string]string {
	t.Helper()
	before := strings.TrimSpace(shell(t, ".", "GOFLAGS=-mod=mod go list -m -f '{{.GoMod}}' k8s.io/sample-apiserver"))
	versions := map[string]string{}
	for _, m := range requirements(t, before) {
		versions[m[1]] = m[2]
	}
	out := map[string]string{}
	for _, m := range requirements(t, filepath.Join(dir, "go.mod")) {
		if old := versions[m[1]]; old != m[2] && m[1] != "github.com/kube-watchcache/watchcache" {
			out[m[1]] = old + " " + m[2]
		}
	}
	return out
}

func requirements(t *testing.T, name string) [][]string {
	t.Helper()
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	return requirement.FindAllStringSubmatch(string(content), -1)
}

// serveAsCluster runs the page's command of the server, waits until it is ready, and
// runs the page's command that checks it.
func serveAsCluster(t *testing.T, dir, run, check string) {
	t.Helper()
	etcd, err := embedded.Start(context.Background(), embedded.Config{Dir: filepath.Join(t.TempDir(), "etcd"), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	ca, _, err := certutil.GenerateSelfSignedCertKey("front-proxy", nil, nil)
	require.NoError(t, err)
	kube := httptest.NewServer(fakekube.Cluster{ClientCA: string(ca)})
	t.Cleanup(func() {
		kube.CloseClientConnections()
		kube.Close()
	})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, fakekube.WriteKubeconfig(kubeconfig, kube.URL, "alice"))
	env := []string{"KUBECONFIG=" + kubeconfig, "HOME=" + t.TempDir()}

	port := freePort(t)
	require.Contains(t, run, "--etcd-servers=http://127.0.0.1:2379")
	run = strings.NewReplacer("8443", port, "http://127.0.0.1:2379", etcd.Endpoints()[0]).Replace(run)
	server, err := pages.Serve(dir, "", run+" --bind-address=127.0.0.1", "Serving securely on", env...)
	require.NoError(t, err)
	t.Cleanup(func() {
		server.Stop()
		if t.Failed() {
			t.Log(server.Log())
		}
	})
	get := func(path string) string { return request(t, "https://127.0.0.1:"+port+path, "alice") }
	require.Eventually(t, func() bool { return get("/readyz") == "ok" }, patience, 50*time.Millisecond, "%s", server.Log())
	require.Contains(t, get("/readyz/watchcache"), "ok")
	for _, resource := range []string{"fischers", "flunders"} {
		require.Contains(t, get("/metrics"), `watchcache_objects{group="wardle.example.com",resource="`+resource+`"} 0`)
	}
	if _, err := exec.LookPath("kubectl"); err != nil {
		t.Log("no kubectl here: asked without it")
		return
	}
	require.Equal(t, printed(t), shell(t, dir, strings.ReplaceAll(check, "8443", port), env...))
}

// printed is the output that the page promises.
func printed(t *testing.T) string {
	t.Helper()
	blocks, err := pages.Section(page, "From sample-apiserver's layout")
	require.NoError(t, err)
	return blocks[len(blocks)-1].Text
}

func shell(t *testing.T, dir, script string, env ...string) string {
	t.Helper()
	out, err := pages.Shell(dir, script, env...)
	require.NoError(t, err)
	return out
}

// request returns the body of a GET with a token, or the error.
func request(t *testing.T, url, token string) string {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // it made its certificate itself
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	response, err := transport.RoundTrip(req)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}
