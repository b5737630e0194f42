// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/kube-watchcache/watchcache/cacher"
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

// request sends a request as it is, over the given version of HTTP.
func sendRaw(t testing.TB, served *httptest.Server, method, path string, header http.Header, http2 bool) rawAnswer {
	t.Helper()
	transport := served.Client().Transport.(*http.Transport).Clone()
	transport.DisableCompression = true
	if !http2 {
		transport.Protocols = &http.Protocols{}
		transport.Protocols.SetHTTP1(true)
		transport.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
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
				if round > 0 {
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

// A client that goes away in the middle of a compressed list harms nobody.
func TestCompressedListsOfClientsThatLeave(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	for range 4 {
		s.expectSame(t, podsPath, asJSON, true)
	}
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() {
			for i := range 5 {
				ctx, leave := context.WithCancel(t.Context())
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.with.URL+podsPath, nil)
				if !assert.NoError(t, err) {
					leave()
					return
				}
				r.Header.Set("Accept-Encoding", "gzip")
				response, err := s.with.Client().Do(r)
				if assert.NoError(t, err) {
					_, _ = io.CopyN(io.Discard, response.Body, int64(1+client*100*i))
					leave()
					_ = response.Body.Close()
				}
				leave()
			}
		})
	}
	clients.Wait()
	s.expectSame(t, podsPath, asJSON, true)
	require.True(t, isKept(sendRaw(t, s.with, http.MethodGet, podsPath, http.Header{"Accept-Encoding": {"gzip"}, "Accept": {asJSON}}, true).body))
}

// A list is brought into a form by the server where Accept has a parameter that this
// package does not know: Kubernetes 1.38 leaves managed fields out by one.
func TestUnknownParametersOfForms(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	for _, form := range []string{asTable, asPartial} {
		for parameter, kept := range map[string]bool{"": true, ";drop=metadata.managedFields": false} {
			for range 3 { // the second list of a kind is the first one that is kept
				s.expectSameForm(t, podsPath, form+parameter, true)
			}
			got := sendRaw(t, s.with, http.MethodGet, podsPath, http.Header{"Accept-Encoding": {"gzip"}, "Accept": {form + parameter}}, true)
			require.Equal(t, kept, isKept(got.body), form+parameter)
		}
	}
}

// A list that is larger than the budget is kept in compressed form only, if that
// fits, and both kinds of clients are served from it.
func TestCompressedListsWithinTheBudget(t *testing.T) {
	const budget = 160 << 10 // the list has 270 KB
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata, cacher.Configure(func(c *cacher.Config) { c.EncodingBytes = budget }))
	manyPods(t, s)
	// Where chunks begin is random. Plain bytes that were read lately may leave no room
	// for a chunk that a new object begins, so that some lists go by until it is kept.
	settle := func() {
		for round := range 14 { // so many until a list tries again that has found no room
			s.expectSame(t, podsPath, asJSON, true)
			require.LessOrEqual(t, s.cache.Status().EncodingBytes, int64(budget), "in round %d", round)
		}
	}
	settle()
	for range 3 {
		for _, compressed := range []bool{true, false} {
			s.encoded.Store(0)
			s.expectSame(t, podsPath, asJSON, compressed)
			if !race.Invariants { // which encode each list for comparison
				require.Less(t, s.encoded.Load(), int64(4), "the list is kept as a whole")
			}
			require.LessOrEqual(t, s.cache.Status().EncodingBytes, int64(budget))
		}
		s.put(t, testPod("ns1", "x8", 77))
		settle()
	}
}

// BenchmarkCompressedList answers LISTs of 5,000 pods of 3.5 KB from the server's
// handlers, everything but the connection: with the server's own encoder and
// compressor, and from what is kept.
func BenchmarkCompressedList(b *testing.B) {
	s := serveTwins(b, pods(b), auditinternal.LevelNone, cacher.Configure(func(c *cacher.Config) { c.EncodingBytes = 64 << 20 }))
	for i := range 5000 {
		pod := testPod("ns1", fmt.Sprintf("pod-%05d", i), i)
		pod.Annotations["text"] = noise(i, 3100)
		s.put(b, pod)
	}
	for _, accept := range []string{asJSON, asProtobuf} {
		for _, encoding := range []string{"identity", "gzip"} {
			for _, served := range []*httptest.Server{s.without, s.with} {
				name := map[bool]string{true: "kept", false: "shipped"}[served == s.with]
				b.Run(fmt.Sprintf("%s/%s/%s", accept[len("application/"):], encoding, name), func(b *testing.B) {
					list := func() int {
						r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, podsPath+"?resourceVersion=0", nil)
						r.Header.Set("Accept", accept)
						r.Header.Set("Accept-Encoding", encoding)
						w := &countingWriter{ResponseRecorder: httptest.NewRecorder()}
						served.Config.Handler.ServeHTTP(w, r)
						require.Equal(b, encoding == "gzip", w.Header().Get("Content-Encoding") == "gzip")
						return w.written
					}
					for range 4 {
						list()
					}
					b.ReportAllocs()
					bytes := 0
					for b.Loop() {
						bytes = list()
					}
					b.ReportMetric(float64(bytes), "bytes/list")
				})
			}
		}
	}
}

// countingWriter keeps the header and counts the body.
type countingWriter struct {
	*httptest.ResponseRecorder
	written int
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.written += len(p)
	return len(p), nil
}

// noise is text that compresses about as objects do.
func noise(seed, n int) string {
	words := []string{"container", "metadata", "volume", "10.0.0.", "kubernetes.io/", "sha256:", "true", "mount"}
	var b bytes.Buffer
	for x := uint32(seed)*2654435761 + 1; b.Len() < n; x = x*1664525 + 1013904223 {
		fmt.Fprintf(&b, "%s-%x ", words[x>>29], x>>14)
	}
	return b.String()[:n]
}
