// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"net/http"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/kube-watchcache/watchcache/cacher"
)

// FuzzAnswers sends any request for lists and single objects, with any Accept, to
// both servers, and compares the answers: status, header and every byte.
func FuzzAnswers(f *testing.F) {
	s := serveTwins(f, pods(f), auditinternal.LevelMetadata, cacher.Configure(func(c *cacher.Config) { c.EncodingBytes = 100 << 10 }))
	for i, name := range objectNames(40) {
		s.put(f, testPod([]string{"ns1", "ns2"}[i%2], name, 0))
	}
	const root = "/apis/" + example.GroupName + "/v1/"
	ask(f, s.with, root+"pods", asJSON, false) // consistent: the cache has all objects now
	for _, seed := range []struct {
		path, query, accept string
	}{
		{"pods", "", asJSON}, {"pods", "limit=7", asProtobuf}, {"namespaces/ns1/pods", "resourceVersion=0&limit=3", asKubectl},
		{"namespaces/ns1/pods/x27", "", asTable}, {"pods", "fieldSelector=metadata.name%3Dx27", asInformer}, {"pods", "labelSelector=app+in+(a,b)&pretty=1", asYAML},
		{"pods", "resourceVersionMatch=Exact&resourceVersion=3", asPartialProtobuf}, {"pods", "resourceVersion=99999999", asJSON},
		{"pods", "continue=AAAA", asTable}, {"namespaces/ns1%2f..%2fns2/pods", "", asJSON}, {"namespaces//pods", "", asJSON}, {"pods/", "", asJSON},
		{"namespaces/ns1/../ns2/pods", "", asJSON}, {"pods", "sendInitialEvents=true", asJSON}, {"pods", "limit=-1&limit=2", "*/*"},
		{"pods", "includeObject=Object&limit=9223372036854775807", asTable}, {"pods", "labelSelector=%00", "application/json;as=Table"}, {"pods", ";=;", ",,;q=2"},
	} {
		f.Add(seed.path, seed.query, seed.accept, len(seed.query)%2 == 0)
	}
	f.Fuzz(func(t *testing.T, suffix, query, accept string, compressed bool) {
		asked := root + suffix + "?" + query
		parsed, err := url.Parse(s.with.URL + asked)
		if err != nil || !strings.HasPrefix(path.Clean(parsed.Path), root) || strings.Contains(parsed.Path, "watch") || parsed.Query().Has("watch") {
			return // no request, one to another handler, or one that does not end
		}
		if parsed.Query().Has("timeout") {
			return // the server's filter may cut the answer off while it is written
		}
		if r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.with.URL+asked, nil); err != nil || r.URL.Fragment != "" {
			return
		}
		if _, err := tryAsk(t.Context(), s.without, asked, accept, compressed); err != nil {
			return // which Go's client does not send
		}
		// Cells tell ages in seconds, so that more tries are allowed.
		for try := 0; ; try++ {
			want, got := ask(t, s.without, asked, accept, compressed), ask(t, s.with, asked, accept, compressed)
			if bytes.Equal(want.body, got.body) || try == 20 {
				requireSame(t, want, got, asked, accept, compressed)
				break
			}
		}
		require.LessOrEqual(t, s.cache.Status().EncodingBytes, int64(100<<10))
	})
}
