// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/kube-watchcache/watchcache/internal/race"
)

const podsPath = "/apis/" + example.GroupName + "/v1/pods"

// manyPods makes objects whose list is long enough to be compressed: 60 of some 4.4 KB.
func manyPods(t testing.TB, s *twins) {
	t.Helper()
	for i, name := range objectNames(60) {
		s.put(t, testPod([]string{"ns1", "ns1", "ns2"}[i%3], name, i))
	}
}

// rawAnswer is an answer whose body is as the server sent it.
type rawAnswer struct {
	answer
	proto    string
	encoding []string // the transfer encoding
}

// rawTransport leaves bodies as the server sends them.
func rawTransport(served *httptest.Server, http2 bool) *http.Transport {
	transport := served.Client().Transport.(*http.Transport).Clone()
	transport.DisableCompression = true
	if !http2 {
		transport.Protocols = &http.Protocols{}
		transport.Protocols.SetHTTP1(true)
		transport.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	return transport
}

// sendRaw sends a request as it is, over the given version of HTTP.
func sendRaw(t testing.TB, served *httptest.Server, method, path string, header http.Header, http2 bool) rawAnswer {
	t.Helper()
	transport := rawTransport(served, http2)
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), method, served.URL+path, nil)
	require.NoError(t, err)
	r.Header = header
	response, err := transport.RoundTrip(r)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	response.Header.Del("Date")
	response.Header.Del("Audit-Id")
	if response.Header.Get("Content-Encoding") != "" {
		response.Header.Del("Content-Length") // which net/http sets if the body is short
	}
	return rawAnswer{answer{response.StatusCode, response.Header, body}, response.Proto, response.TransferEncoding}
}

// isKept reports whether a body begins as those that are put together of what is
// kept in compressed form: with a stored block, which no compressor begins with.
func isKept(body []byte) bool {
	return len(body) > 15 && body[0] == 0x1f && body[1] == 0x8b && body[10] == 0
}

// gunzip reads exactly one member, after which nothing may follow.
func gunzip(t testing.TB, body []byte) []byte {
	t.Helper()
	from := bytes.NewReader(body)
	r, err := gzip.NewReader(from)
	require.NoError(t, err)
	r.Multistream(false)
	read, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Zero(t, from.Len(), "one member, and nothing after it")
	return read
}

// A list that clients repeat is sent in the compressed form that is kept of it, over
// both versions of HTTP, with the header and the content that the server's own
// encoder and compressor make.
func TestCompressedLists(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	for _, accept := range []string{asJSON, asProtobuf, asPartial, asTable} {
		header := http.Header{"Accept": {accept}, "Accept-Encoding": {"gzip"}}
		for round := range 8 {
			if round == 5 {
				s.put(t, testPod("ns1", "x27", 1000))
			}
			for _, http2 := range []bool{false, true} {
				want := sendRaw(t, s.without, http.MethodGet, podsPath, header, http2)
				got := sendRaw(t, s.with, http.MethodGet, podsPath, header, http2)
				require.Equal(t, want.status, got.status)
				require.Equal(t, want.header, got.header)
				require.Equal(t, "gzip", got.header.Get("Content-Encoding"))
				require.Equal(t, []any{want.proto, want.encoding}, []any{got.proto, got.encoding})
				require.Equal(t, http2, got.proto == "HTTP/2.0")
				require.False(t, isKept(want.body))
				require.Equal(t, string(gunzip(t, want.body)), string(gunzip(t, got.body)))
				require.Less(t, len(got.body), len(want.body)*3/2+1000)
				if round > 0 && accept != asTable { // the server compresses Tables itself
					require.True(t, isKept(got.body), "round %d as %s", round, accept)
				}
			}
		}
		if race.Invariants {
			continue // each list is encoded for comparison
		}
		require.Eventually(t, func() bool { // the mirror of the other server may be behind
			s.encoded.Store(0)
			sendRaw(t, s.with, http.MethodGet, podsPath, header, true)
			return s.encoded.Load() < 4
		}, time.Minute, time.Millisecond, "only the frame of a repeated list is encoded")
	}
}

// Answers that the server does not compress of itself are not compressed, and
// everything else is as without the line.
func TestWhatIsNotCompressed(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	for range 4 { // so that everything is kept, plain and compressed
		s.expectSame(t, podsPath, asJSON, true)
		s.expectSame(t, podsPath, asJSON, false)
	}
	same := func(t *testing.T, method, path string, header http.Header) rawAnswer {
		t.Helper()
		want := sendRaw(t, s.without, method, path, header.Clone(), true)
		got := sendRaw(t, s.with, method, path, header.Clone(), true)
		require.Equal(t, want.status, got.status)
		require.Equal(t, want.header, got.header)
		if got.header.Get("Content-Encoding") != "gzip" {
			require.Equal(t, string(want.body), string(got.body))
			return got
		}
		require.Equal(t, string(gunzip(t, want.body)), string(gunzip(t, got.body)))
		return got
	}
	for encodings, compressed := range map[string]bool{
		"gzip": true, "deflate, gzip": true, "br,gzip ,deflate": true,
		"": false, "identity": false, "deflate": false, "*": false, "gzip;q=0": false, "gzip;q=1": false, "GZIP": false, "x-gzip": false,
	} {
		t.Run("Accept-Encoding: "+encodings, func(t *testing.T) {
			got := same(t, http.MethodGet, podsPath, http.Header{"Accept": {asJSON}, "Accept-Encoding": {encodings}})
			require.Equal(t, compressed, got.header.Get("Content-Encoding") == "gzip")
			require.Equal(t, compressed, isKept(got.body))
		})
	}
	gzipped := http.Header{"Accept": {asJSON}, "Accept-Encoding": {"gzip"}}
	for name, c := range map[string]struct{ method, path, accept string }{
		"a short list":         {http.MethodGet, podsPath + "?limit=5", asJSON},
		"an empty list":        {http.MethodGet, podsPath + "?labelSelector=none", asJSON},
		"HEAD":                 {http.MethodHead, podsPath, asJSON},
		"a selector in error":  {http.MethodGet, podsPath + "?labelSelector=%21%21", asJSON},
		"an unknown resource":  {http.MethodGet, podsPath + "s", asJSON},
		"an unknown format":    {http.MethodGet, podsPath, "image/png"},
		"a future version":     {http.MethodGet, podsPath + "?resourceVersion=x", asJSON},
		"a deleting selection": {http.MethodPatch, podsPath, asJSON},
		"an object":            {http.MethodGet, "/apis/" + example.GroupName + "/v1/namespaces/ns1/pods/x27", asJSON},
		"a watch":              {http.MethodGet, podsPath + "?watch=true&timeoutSeconds=1&resourceVersion=0", asJSON},
	} {
		t.Run(name, func(t *testing.T) {
			header := gzipped.Clone()
			header.Set("Accept", c.accept)
			if name == "a watch" {
				got := sendRaw(t, s.with, c.method, c.path, header, true)
				require.Empty(t, got.header.Get("Content-Encoding"))
				require.Equal(t, 60, bytes.Count(got.body, []byte(`"ADDED"`)))
				return
			}
			got := same(t, c.method, c.path, header)
			require.Empty(t, got.header.Get("Content-Encoding"))
		})
	}
	for name, accept := range map[string]string{"a Table": asTable, "metadata only": asPartial, "YAML": asYAML} {
		t.Run(name, func(t *testing.T) {
			same(t, http.MethodGet, podsPath, http.Header{"Accept": {accept}, "Accept-Encoding": {"gzip"}})
		})
	}
	t.Run("without the feature", func(t *testing.T) {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.APIResponseCompression, false)
		got := same(t, http.MethodGet, podsPath, gzipped)
		require.Empty(t, got.header.Get("Content-Encoding"))
	})
	got := same(t, http.MethodGet, podsPath, gzipped)
	require.True(t, isKept(got.body))
}
