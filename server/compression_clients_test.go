// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/client-go/metadata"
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
request = urllib.request.Request(sys.argv[1], headers={"Accept": sys.argv[3], "Accept-Encoding": "gzip"})
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
		require.Positive(t, answers.count.Swap(0), "the answer came from kept bytes")
	}
	config := &rest.Config{Host: url, TLSClientConfig: rest.TLSClientConfig{CAData: certificate}}
	t.Run("client-go", func(t *testing.T) { read(t, askClientGo(t, config, path, asJSON)) })
	askClients(t, url+path, asJSON, ca, read)
	t.Run("kubectl", func(t *testing.T) { read(t, askKubectl(t, url, ca, "get", "--raw", path)) })
}

// Clients of every kind that can ask for them read the other forms of compressed lists
// from kept bytes.
func TestClientsReadCompressedForms(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	answers := &keptAnswers{Handler: s.with.Config.Handler}
	url, ca, certificate := serveClients(t, answers)
	config := &rest.Config{Host: url, TLSClientConfig: rest.TLSClientConfig{CAData: certificate}}
	for _, accept := range []string{asProtobuf, asTable, asPartial, asPartialProtobuf} {
		t.Run(accept, func(t *testing.T) {
			path := podsPath + "?pretty=false"
			var want []byte
			for range 4 {
				want = s.expectSameForm(t, path, accept, true).body
			}
			read := func(t *testing.T, body []byte) {
				t.Helper()
				require.Equal(t, string(want), string(body))
				require.Positive(t, answers.count.Swap(0), "the answer came from kept bytes")
			}
			t.Run("client-go", func(t *testing.T) { read(t, askClientGo(t, config, path, accept)) })
			askClients(t, url+path, accept, ca, read)
		})
	}
	t.Run("metadata client", func(t *testing.T) {
		client, err := metadata.NewForConfig(config)
		require.NoError(t, err)
		of := schema.GroupVersionResource{Group: example.GroupName, Version: "v1", Resource: "pods"}
		list, err := client.Resource(of).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, 60)
		require.Positive(t, answers.count.Swap(0), "the answer came from kept bytes")
	})
	t.Run("kubectl", func(t *testing.T) {
		without, withoutCA, _ := serveClients(t, s.without.Config.Handler)
		get := []string{"get", "pods.v1." + example.GroupName, "--all-namespaces", "--output=wide"}
		want := askKubectl(t, without, withoutCA, get...)
		require.Equal(t, 60+1, bytes.Count(want, []byte("\n")), "pods and a head")
		require.Equal(t, string(want), string(askKubectl(t, url, ca, get...)))
		require.Positive(t, answers.count.Swap(0), "the answer came from kept bytes")
	})
}

// askClientGo returns what client-go reads.
func askClientGo(t *testing.T, config *rest.Config, path, accept string) []byte {
	t.Helper()
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(pods(t).scheme)
	client, err := rest.UnversionedRESTClientFor(config)
	require.NoError(t, err)
	body, err := client.Get().RequestURI(path).SetHeader("Accept", accept).DoRaw(t.Context())
	require.NoError(t, err)
	return body
}

// askKubectl returns what kubectl writes.
func askKubectl(t *testing.T, url, ca string, args ...string) []byte {
	t.Helper()
	flags := []string{"--kubeconfig=/dev/null", "--cache-dir=" + t.TempDir(), "--token=none", "--server=" + url, "--certificate-authority=" + ca}
	return askClient(t, "kubectl", append(flags, args...)...)
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

// askClients has read look at what programs get that know nothing of Kubernetes. A
// browser, which can't be told what to accept, asks for JSON only.
func askClients(t *testing.T, url, accept, ca string, read func(t *testing.T, body []byte)) {
	t.Helper()
	for name, flag := range map[string]string{"curl, HTTP/2": "--http2", "curl, HTTP/1.1": "--http1.1"} {
		t.Run(name, func(t *testing.T) {
			read(t, askClient(t, "curl", "-sSf", "--compressed", flag, "--cacert", ca, "--header", "Accept: "+accept, url))
		})
	}
	t.Run("Python", func(t *testing.T) { read(t, askClient(t, "python3", "-c", python, url, ca, accept)) })
	if accept != asJSON {
		return
	}
	t.Run("Chromium", func(t *testing.T) { read(t, askChromium(t, url)) })
}

// find skips the test if the program is not there, unless .ci/run installs it.
func find(t *testing.T, inCI bool, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		require.False(t, inCI && os.Getenv("CI") == "true", "there is no %s", program)
		t.Skipf("there is no %s here: %v", program, err)
	}
}

// askClient returns what a program writes.
func askClient(t *testing.T, program string, args ...string) []byte {
	t.Helper()
	find(t, false, program)
	var diagnostics bytes.Buffer
	command := exec.CommandContext(t.Context(), program, args...)
	command.Stderr = &diagnostics
	body, err := command.Output()
	require.NoError(t, err, diagnostics.String())
	return body
}
