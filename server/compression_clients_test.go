// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/pem"
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/client-go/rest"
)

// keptAnswers counts the answers that are put together of what is kept in
// compressed form.
type keptAnswers struct {
	http.Handler
	count atomic.Int64
}

func (k *keptAnswers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.Handler.ServeHTTP(&firstBytes{ResponseWriter: w, kept: &k.count}, r)
}

// firstBytes looks at the first bytes of an answer.
type firstBytes struct {
	http.ResponseWriter
	kept  *atomic.Int64
	wrote bool
}

func (w *firstBytes) Write(p []byte) (int, error) {
	if !w.wrote && isKept(p) {
		w.kept.Add(1)
	}
	w.wrote = true
	return w.ResponseWriter.Write(p)
}

// python reads an answer with the library that most programs in Python use, and
// with zlib itself, which says whether the answer is one member and complete.
const python = `
import gzip, ssl, sys, urllib.request, zlib
request = urllib.request.Request(sys.argv[1], headers={"Accept": "application/json", "Accept-Encoding": "gzip"})
answer = urllib.request.urlopen(request, context=ssl.create_default_context(cafile=sys.argv[2]))
assert answer.headers["Content-Encoding"] == "gzip", answer.headers
raw = answer.read()
member = zlib.decompressobj(wbits=31)
read = member.decompress(raw) + member.flush()
assert member.eof and not member.unused_data
assert gzip.decompress(raw) == read
sys.stdout.buffer.write(read)
`

// Clients of every kind read compressed lists from kept bytes.
func TestClientsReadCompressedLists(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	answers := &keptAnswers{Handler: s.with.Config.Handler}
	url, ca, certificate := serveClients(t, answers)
	path := podsPath + "?pretty=false" // which curl and browsers get otherwise
	var want []byte
	for range 4 {
		want = s.expectSame(t, path, asJSON, true).body
	}
	read := func(t *testing.T, body []byte) {
		t.Helper()
		require.Equal(t, string(want), string(body))
		require.Equal(t, int64(1), answers.count.Swap(0), "the answer came from kept bytes")
	}
	t.Run("client-go", func(t *testing.T) {
		config := &rest.Config{Host: url, TLSClientConfig: rest.TLSClientConfig{CAData: certificate}}
		config.NegotiatedSerializer = serializer.NewCodecFactory(pods(t).scheme)
		client, err := rest.UnversionedRESTClientFor(config)
		require.NoError(t, err)
		body, err := client.Get().RequestURI(path).SetHeader("Accept", asJSON).DoRaw(t.Context())
		require.NoError(t, err)
		read(t, body)
	})
	askClients(t, url+path, ca, read)
	t.Run("kubectl", func(t *testing.T) {
		read(t, askClient(t, false, "kubectl", "--kubeconfig=/dev/null", "--token=none", "--server="+url, "--certificate-authority="+ca, "get", "--raw", path))
	})
}

// serveClients serves programs over HTTPS, and returns the URL, and the certificate in
// a file and as it is.
func serveClients(t *testing.T, handler http.Handler) (url, ca string, certificate []byte) {
	t.Helper()
	served := httptest.NewUnstartedServer(handler)
	served.EnableHTTP2 = true
	served.StartTLS()
	t.Cleanup(served.Close)
	ca = filepath.Join(t.TempDir(), "ca.crt")
	certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: served.Certificate().Raw})
	require.NoError(t, os.WriteFile(ca, certificate, 0o600))
	return served.URL, ca, certificate
}

// askClients has read look at what programs get that know nothing of Kubernetes.
func askClients(t *testing.T, url, ca string, read func(t *testing.T, body []byte)) {
	t.Helper()
	for name, flag := range map[string]string{"curl, HTTP/2": "--http2", "curl, HTTP/1.1": "--http1.1"} {
		t.Run(name, func(t *testing.T) {
			read(t, askClient(t, false, "curl", "-sSf", "--compressed", flag, "--cacert", ca, url))
		})
	}
	t.Run("Python", func(t *testing.T) { read(t, askClient(t, false, "python3", "-c", python, url, ca)) })
	t.Run("Chromium", func(t *testing.T) {
		read(t, shownByBrowser(askClient(t, true, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--ignore-certificate-errors",
			"--user-data-dir="+t.TempDir(), "--dump-dom", url)))
	})
}

// askClient returns what a program writes. The test is skipped if the program is not
// there, unless .ci/run installs it.
func askClient(t *testing.T, inCI bool, program string, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		require.False(t, inCI && os.Getenv("CI") == "true", "there is no %s", program)
		t.Skipf("there is no %s here: %v", program, err)
	}
	var diagnostics bytes.Buffer
	command := exec.CommandContext(t.Context(), program, args...)
	command.Stderr = &diagnostics
	body, err := command.Output()
	require.NoError(t, err, diagnostics.String())
	return body
}

// shownByBrowser returns the JSON that a browser shows on a page.
func shownByBrowser(page []byte) []byte {
	from, to := bytes.IndexByte(page, '{'), bytes.LastIndexByte(page, '}')
	if from < 0 || to < from {
		return page
	}
	return append([]byte(html.UnescapeString(string(page[from:to+1]))), '\n')
}
