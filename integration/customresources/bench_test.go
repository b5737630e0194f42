// SPDX-License-Identifier: Apache-2.0

package customresources

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// BenchmarkLists answers LISTs of 2,000 custom resources of 15.6 KB as JSON, 6.2 KB of which are
// metadata, from the servers' handlers, everything but the connection, and tells
// what that takes of the processors, in milliseconds for a list.
func BenchmarkLists(b *testing.B) {
	f := newFixture(b)
	f.define(b, definition("pandas", "Panda", &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}))
	for i := range 2000 {
		f.put(b, "pandas", "Panda", "ns1", fmt.Sprintf("panda-%04d", i), 0)
	}
	all := root("v1") + "pandas"
	for _, s := range []*server{f.shipped, f.cached} { // consistent: the caches have all objects now
		require.Equal(b, http.StatusOK, s.ask(b, all, asMetadata, false).status)
	}
	for _, c := range []struct{ name, accept, query string }{
		{"list", asJSON, ""}, {"metadata", asMetadata, ""}, {"metadata, protobuf", asProtobufMetadata, ""},
		{"Table", asTable, ""}, {"Table with objects", asTable, "&includeObject=Object"},
	} {
		for _, encoding := range []string{"identity", "gzip"} {
			for _, s := range []*server{f.shipped, f.cached} {
				b.Run(fmt.Sprintf("%s/%s/kept=%v", c.name, encoding, s == f.cached), func(b *testing.B) {
					list := func() int {
						r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, all+"?resourceVersion=0"+c.query, nil)
						r.Header.Set("Accept", c.accept)
						r.Header.Set("Accept-Encoding", encoding)
						r.Header.Set("Authorization", "Bearer "+s.config.BearerToken)
						w := &countingWriter{ResponseRecorder: httptest.NewRecorder()}
						s.handler.ServeHTTP(w, r)
						require.Equal(b, http.StatusOK, w.Code)
						require.Equal(b, encoding == "gzip", w.Header().Get("Content-Encoding") == "gzip")
						return w.written
					}
					for range 4 {
						list()
					}
					bytes, before := 0, cpuTime(b)
					for b.Loop() {
						bytes = list()
					}
					spent := cpuTime(b) - before
					b.ReportMetric(float64(spent)/float64(time.Millisecond)/float64(b.N), "cpu-ms/list")
					b.ReportMetric(float64(bytes), "bytes/list")
				})
			}
		}
	}
}

// cpuTime returns what the process has taken of the processors.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
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
