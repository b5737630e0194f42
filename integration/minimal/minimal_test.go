// SPDX-License-Identifier: Apache-2.0

//go:build unix

package minimal

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-watchcache/watchcache/integration/internal/pages"
)

const (
	root    = "../.."
	example = root + "/examples/minimal"

	// patience bounds the wait for what is sure to happen.
	patience     = 2 * time.Minute
	pollInterval = 100 * time.Millisecond
)

// blocks returns the commands of the page's section on copying, block by block and
// line by line.
func blocks(t *testing.T) (out [][]string) {
	t.Helper()
	section, err := pages.Section(filepath.Join(example, "README.md"), "From copying to `kubectl get`")
	require.NoError(t, err)
	for _, block := range section {
		require.Equal(t, "sh", block.Language)
		out = append(out, strings.Split(strings.TrimSpace(block.Text), "\n"))
	}
	return out
}

// shell runs a script that must succeed.
func shell(t *testing.T, dir, script string, env ...string) string {
	t.Helper()
	out, err := pages.Shell(dir, script, env...)
	require.NoError(t, err)
	return out
}

// TestFiveCommands runs the commands of examples/minimal/README.md as they stand
// there, but for two things: the copy is in a temporary directory, and the server
// takes a free port.
func TestFiveCommands(t *testing.T) {
	said := blocks(t)
	require.Len(t, said, 3)
	require.Len(t, append(said[0], said[1]...), 5, "the page promises five commands")
	last := len(said[0]) - 1
	prepare := strings.Join(said[0][:last], "\n")
	require.Contains(t, prepare, "../widgets")
	widgets := filepath.Join(t.TempDir(), "widgets")
	server, err := pages.Serve(root, strings.ReplaceAll(prepare, "../widgets", widgets), said[0][last]+" --secure-port=0", "Serving widgets.example.com/v1 on https://127.0.0.1:")
	require.NoError(t, err)
	t.Cleanup(func() {
		server.Stop()
		if t.Failed() {
			t.Log(server.Log())
		}
	})

	testEitherForm(t, filepath.Join(widgets, ".run", "kubeconfig"))
	if _, err := exec.LookPath("kubectl"); err != nil {
		t.Skip("the server serves, but there is no kubectl to speak to it with")
	}
	home := "HOME=" + t.TempDir() // for kubectl's own cache
	out := shell(t, widgets, strings.Join(said[1], "\n"), home)
	require.Contains(t, out, "widget.widgets.example.com/left created")
	require.Regexp(t, `(?m)^NAME .*\nleft .*\nright `, out)
	require.Eventually(t, func() bool { // sizes are measured once a second
		return strings.Contains(shell(t, widgets, strings.Join(said[2], "\n"), home), `watchcache_objects{group="widgets.example.com",resource="widgets"} 2`)
	}, patience, pollInterval)

	// Types, strategy and OpenAPI definitions do their part.
	const kubectl = "kubectl --kubeconfig .run/kubeconfig "
	require.Equal(t, "widget.widgets.example.com/left\n", shell(t, widgets, kubectl+"get widgets -A --field-selector spec.color=red -o name", home))
	require.Contains(t, shell(t, widgets, kubectl+"get widgets --field-selector spec.size=9 2>&1 || true", home), `"spec.size" is not a selectable field of widgets`)
	require.Contains(t, shell(t, widgets, kubectl+`patch widget left --type=merge -p '{"spec":{"size":-1}}' 2>&1 || true`, home), "spec.size: Invalid value: -1: must not be negative")
	require.Contains(t, shell(t, widgets, kubectl+"explain widget.spec.color", home), "A selectable field")
	require.Contains(t, shell(t, widgets, kubectl+"apply --server-side --force-conflicts -f widgets.yaml", home), "right serverside-applied")
	require.Contains(t, shell(t, widgets, kubectl+"delete -f widgets.yaml", home), `"right" deleted`)

	// A server that is stopped while a client watches ends the watch, and logs neither
	// a warning nor an error from its start to its end.
	watching := exec.Command("sh", "-c", "exec "+kubectl+"get widgets -w")
	watching.Dir, watching.Env = widgets, append(os.Environ(), home)
	require.NoError(t, watching.Start())
	defer func() {
		_ = watching.Process.Kill()
		_ = watching.Wait()
	}()
	require.Eventually(t, func() bool {
		return strings.Contains(shell(t, widgets, kubectl+"get --raw '/debug/watchcache?format=json'", home), `"userAgent":"kubectl`)
	}, patience, pollInterval)
	server.Stop()
	require.NotRegexp(t, `(?m)^[EWF]\d{4} `, server.Log())
}

// testEitherForm creates, watches and deletes as the clients of Kubernetes do, which accept
// protobuf as well as JSON. The type has no protobuf.
func testEitherForm(t *testing.T, kubeconfig string) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	const of = "/apis/widgets.example.com/v1/namespaces/forms/widgets"
	do := func(method, path, body string, code int) string {
		request, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Accept", "application/vnd.kubernetes.protobuf,application/json")
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, code, response.StatusCode, "%s %s: %s", method, path, content)
		return string(content)
	}
	do(http.MethodPost, of, `{"apiVersion":"widgets.example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"color":"red","size":1}}`, http.StatusCreated)
	require.Contains(t, do(http.MethodGet, of+"?watch=1&resourceVersion=0&timeoutSeconds=5", "", http.StatusOK), `"type":"ADDED"`)
	require.Contains(t, do(http.MethodDelete, of, "", http.StatusOK), `"kind":"WidgetList"`)
	do(http.MethodGet, of+"/w", "", http.StatusNotFound)
}
