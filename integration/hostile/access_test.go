// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	api     = "/apis/fleet.example.com/v1/"
	everyNS = api + "devices"
)

func in(namespace string) string { return api + "namespaces/" + namespace + "/devices" }

// The forms of answers.
const (
	asJSON     = "application/json"
	asTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asMetadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	asProtobuf = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

var forms = []string{asJSON, asTable, asMetadata, asProtobuf}

// TestAccess: without a certificate of the right authority nobody reads anything,
// and no user reads what it has no right to, whatever it asks with.
func TestAccess(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, namespace := range []string{ours, theirs, likeOurs} {
		for i := range 5 {
			require.NoError(t, f.put(t.Context(), namespace, fmt.Sprint("device-", i), i))
		}
	}
	pages := []string{"/metrics", "/debug/watchcache", "/debug/watchcache?format=json&values=true", "/debug/pprof/heap", "/readyz/watchcache"}
	everything := append(f.attempts(t), pages...)
	everything = append(everything, in(ours), in(ours)+"/device-1", in(ours)+"?watch=true&timeoutSeconds=1", api, "/openapi/v2", "/version")
	for user, allowed := range map[string]func(path string) bool{
		without: nothing, stranger: nothing, nobody: nothing,
		operator: func(path string) bool { return !strings.Contains(path, "/devices") },
		bound:    nothing,
	} {
		for _, http2 := range []bool{false, true} {
			client := f.client(t, user, http2)
			paths := everything
			if user == bound {
				paths = append(f.attempts(t), pages...)
			}
			for i, path := range paths {
				a, err := f.ask(t.Context(), client, path, forms[i%len(forms)], i%2 == 0, "")
				require.NoError(t, err, "%q asks for %s", user, path)
				require.False(t, leaks(a), "%q asks for %s: %s", user, path, a.body)
				require.NotContains(t, a.body, "secret of")
				if !allowed(path) {
					require.NotEqual(t, http.StatusOK, a.status, "%q asks for %s: %s", user, path, a.body)
					require.NotContains(t, a.body, "watchcache_objects")
				}
				if user == without || user == stranger {
					require.Contains(t, []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusMovedPermanently}, a.status, "%q asks for %s", user, path)
				}
			}
		}
	}
	for user, paths := range map[string][]string{operator: pages, bound: {in(ours), in(ours) + "/device-1"}, alice: append(pages, everyNS)} {
		client := f.client(t, user, true)
		for _, path := range paths {
			a, err := f.ask(t.Context(), client, path, asJSON, false, "")
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, a.status, "%q asks for %s: %s", user, path, a.body)
		}
	}
}

func nothing(string) bool { return false }

// attempts are requests for what is not ours.
func (f *fixture) attempts(t *testing.T) (paths []string) {
	t.Helper()
	for _, scope := range []string{
		everyNS, in(theirs), in(likeOurs), in(theirs) + "/device-1", api + "watch/devices", api + "watch/namespaces/" + theirs + "/devices",
		api + "watch/namespaces/" + theirs + "/devices/device-1", in(theirs) + "/device-1/status",
		"/apis/fleet.example.com/v1beta1/devices", "/apis/fleet.example.com/v1beta1/namespaces/" + theirs + "/devices",
	} {
		for _, query := range []string{
			"", "?watch=true&timeoutSeconds=1", "?watch=1&resourceVersion=0&timeoutSeconds=1", "?resourceVersion=0", "?limit=1",
			"?fieldSelector=metadata.namespace%3D" + ours, "?fieldSelector=metadata.name%3Ddevice-1", "?labelSelector=lane%3D1",
			"?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Ddevice-1", "?limit=2&continue=" + token(1<<40, "device-1"),
			"?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&watch=true&allowWatchBookmarks=true&timeoutSeconds=1",
		} {
			paths = append(paths, scope+query)
		}
	}
	for _, path := range []string{
		ours + "/../" + theirs + "/devices", ours + "%2f..%2f" + theirs + "/devices", ours + "/%2e%2e/" + theirs + "/devices",
		"./" + theirs + "/devices", "/" + theirs + "/devices", ours + "/devices/..%2f" + theirs + "%2fdevice-1",
		ours + "/devices/..%2f..%2f" + theirs, ours + "-b/devices/device-1", ours + "b/devices", ours + "%00/../" + theirs + "/devices",
	} {
		paths = append(paths, api+"namespaces/"+path, api+"namespaces/"+path+"?watch=true&timeoutSeconds=1")
	}
	return paths
}

// token is a continue token as a client may make it.
func token(rv int64, start string) string {
	raw, err := json.Marshal(map[string]any{"v": "meta.k8s.io/v1", "rv": rv, "start": start})
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// TestTokensOfOthers: a continue token of a list that others may see leads to
// nothing that they alone may see.
func TestTokensOfOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, namespace := range []string{ours, theirs, likeOurs} {
		for i := range 5 {
			require.NoError(t, f.put(t.Context(), namespace, fmt.Sprint("device-", i), i))
		}
	}
	alices, bounds := f.client(t, alice, true), f.client(t, bound, true)
	var tokens []string
	var rv int64
	for next := "?limit=2"; next != ""; {
		a, err := f.ask(t.Context(), alices, everyNS+next, asJSON, false, "")
		require.NoError(t, err)
		var page metav1.PartialObjectMetadataList
		require.NoError(t, json.Unmarshal([]byte(a.body), &page))
		_, err = fmt.Sscan(page.ResourceVersion, &rv)
		require.NoError(t, err)
		if next = ""; page.Continue != "" {
			tokens = append(tokens, page.Continue)
			next = "?limit=2&continue=" + url.QueryEscape(page.Continue)
		}
	}
	require.Len(t, tokens, 7)
	for _, start := range []string{"../" + theirs + "/device-1", "/../" + theirs, theirs + "/device-1", "-b/device-1", "b/device-1", "\x00", "device-0\x00", "zzz", "..", "%2e%2e/"} {
		tokens = append(tokens, token(rv, start), token(-1, start), token(0, start), token(1, start))
	}
	answered := 0
	for i, token := range tokens {
		for _, limit := range []string{"", "&limit=1", "&limit=100"} {
			for _, accept := range forms {
				a, err := f.ask(t.Context(), bounds, in(ours)+"?continue="+url.QueryEscape(token)+limit, accept, i%2 == 0, "")
				require.NoError(t, err)
				require.False(t, leaks(a), "token %q: %s", token, a.body)
				require.Contains(t, []int{http.StatusOK, http.StatusBadRequest, http.StatusGone}, a.status, a.body)
				if a.status == http.StatusOK {
					answered++
				}
			}
		}
	}
	require.Positive(t, answered, "some tokens are good ones")
}
