// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/internal/cachetest"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// serve returns the answer of a handler of some caches.
func serve(t *testing.T, caches []*cacher.Cacher, method, target string, accept ...string) *httptest.ResponseRecorder {
	t.Helper()
	h := New(Config{Caches: func() []*cacher.Cacher { return caches }})
	request := httptest.NewRequest(method, target, nil)
	for _, a := range accept {
		request.Header.Add("Accept", a)
	}
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, request)
	return recorder
}

func reported(t *testing.T, caches []*cacher.Cacher, parameters string) Report {
	t.Helper()
	answer := serve(t, caches, http.MethodGet, Path+"?format=json"+parameters)
	require.Equal(t, http.StatusOK, answer.Code, answer.Body)
	var out Report
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &out))
	return out
}

// A value that does not fit is a 400 that names the parameter and the value.
func TestBadParameters(t *testing.T) {
	for query, words := range map[string][]string{
		"format=xml":            {"format", `"xml"`, "json"},
		"format=":               {"format", `""`},
		"sort=beauty":           {"sort", `"beauty"`, "lag"},
		"sort=":                 {"sort", `""`},
		"sort=--lag":            {"sort", `"--lag"`},
		"limit=-1":              {"limit", `"-1"`, "1000"},
		"limit=1001":            {"limit", `"1001"`, "1000"},
		"limit=ten":             {"limit", `"ten"`},
		"limit=":                {"limit", `""`},
		"offset=-1":             {"offset", `"-1"`},
		"offset=99999999999999": {"offset", `"99999999999999"`},
		"values=yes":            {"values", `"yes"`},
		"resource=":             {"resource"},
		"limit=1&limit=2":       {"limit", "2 times"},
		"colour=red":            {`"colour"`},
	} {
		message := refused(t, http.MethodGet, Path+"?"+query, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		for _, word := range words {
			require.Contains(t, message, word, query)
		}
	}
	require.Contains(t, refused(t, http.MethodGet, Path+"?format=json&resource=gadgets", http.StatusNotFound, metav1.StatusReasonNotFound), `"gadgets"`)
}

// refused returns the message of a request that is refused. REGRESSIONS 136: the
// answer is a Status of the API, which kubectl shows, and not text.
func refused(t *testing.T, method, target string, code int, reason metav1.StatusReason) string {
	t.Helper()
	answer := serve(t, nil, method, target)
	require.Equal(t, code, answer.Code, target)
	require.Equal(t, "application/json", answer.Header().Get("Content-Type"))
	var status metav1.Status
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &status))
	require.Equal(t, metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, status.TypeMeta)
	require.Equal(t, []any{metav1.StatusFailure, int32(code), reason}, []any{status.Status, status.Code, status.Reason})
	return status.Message
}

// REGRESSIONS 136: kubectl sends --request-timeout as a parameter, which the server's
// filter for deadlines reads.
func TestRequestTimeout(t *testing.T) {
	require.Equal(t, http.StatusOK, serve(t, nil, http.MethodGet, Path+"?timeout=10s").Code)
	require.Equal(t, http.StatusOK, serve(t, nil, http.MethodGet, Path+"?format=json&timeout=10s").Code)
}

func TestMethods(t *testing.T) {
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, "LOOK"} {
		refused(t, method, Path, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
		require.Equal(t, "GET, HEAD", serve(t, nil, method, Path).Header().Get("Allow"))
	}
	require.Equal(t, http.StatusOK, serve(t, nil, http.MethodHead, Path).Code)
}

// JSON is for the clients that say so: kubectl accepts anything, a browser prefers
// HTML.
func TestFormats(t *testing.T) {
	for _, test := range []struct {
		query  string
		accept []string
		json   bool
	}{
		{query: "", json: false},
		{query: "?format=json", json: true},
		{query: "?format=json", accept: []string{"text/html"}, json: true},
		{query: "?format=html", accept: []string{"application/json"}, json: false},
		{accept: []string{"application/json"}, json: true},
		{accept: []string{"application/json, */*"}, json: false},
		{accept: []string{"application/json;q=0.5", "text/html;q=0.9"}, json: false},
		{accept: []string{"application/json;q=0.9"}, json: true},
		{accept: []string{"text/html,application/xhtml+xml,*/*;q=0.8"}, json: false},
		{accept: []string{"*/*"}, json: false},
	} {
		answer := serve(t, nil, http.MethodGet, Path+test.query, test.accept...)
		require.Equal(t, http.StatusOK, answer.Code)
		require.Equal(t, test.json, strings.HasPrefix(answer.Header().Get("Content-Type"), "application/json"), "%+v", test)
	}
	require.JSONEq(t, "[]", string(mustMarshal(t, reported(t, nil, "").Caches)), "no caches are an empty list")
}

func mustMarshal(t *testing.T, v any) []byte {
	t.Helper()
	out, err := json.Marshal(v)
	require.NoError(t, err)
	return out
}

// Two caches of one resource have different ids, and a cache that sleeps is not
// woken by looking at it.
func TestCachesAreToldApart(t *testing.T) {
	store := cachetest.NewStore(poddata.Pod("a/one"))
	first, second := cachetest.Start(t, store), cachetest.Open(t, store, func(c *cacher.Config) { c.LazyStart = true })
	caches := []*cacher.Cacher{first, second}
	report := reported(t, caches, "")
	require.Equal(t, "pods", report.Caches[0].ID)
	require.Equal(t, "ready", report.Caches[0].State)
	require.Equal(t, 1, report.Caches[0].Holds.Objects)
	require.Equal(t, "2", report.Caches[0].Freshness.StorageResourceVersion)
	require.NotNil(t, report.Caches[0].Freshness.StorageAgeSeconds)
	require.Empty(t, report.Caches[1].Freshness, "of a cache that sleeps nothing is known")
	require.Equal(t, "pods~2", report.Caches[1].ID)
	require.Equal(t, "asleep", report.Caches[1].State)
	require.True(t, second.Status().Asleep)

	detail := reported(t, caches, "&resource=pods~2")
	require.Len(t, detail.Caches, 1)
	require.Equal(t, "pods~2", detail.Caches[0].ID)
}

// Watchers come sorted and paged.
func TestWatchersArePaged(t *testing.T) {
	c := cachetest.Start(t, cachetest.NewStore())
	for i := range 30 {
		ctx := cacher.WithClient(t.Context(), status.Client{User: fmt.Sprintf("user-%02d", i)})
		w, err := c.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything})
		require.NoError(t, err)
		t.Cleanup(w.Stop)
	}
	watchers := func(parameters string) (users []string) {
		t.Helper()
		cache := reported(t, []*cacher.Cacher{c}, parameters).Caches[0]
		require.Equal(t, 30, cache.Watchers.Total)
		for _, w := range cache.Watchers.Items {
			users = append(users, w.User)
		}
		return users
	}
	require.Len(t, watchers(""), 20)
	require.Empty(t, watchers("&limit=0"))
	require.Equal(t, []string{"user-00", "user-01"}, watchers("&sort=user&limit=2"))
	require.Equal(t, []string{"user-29", "user-28"}, watchers("&sort=-user&limit=2"))
	require.Equal(t, []string{"user-28", "user-29"}, watchers("&sort=user&limit=10&offset=28"))
	require.Empty(t, watchers("&offset=30"))
}

// An answer counts all of many watchers, and has as many as there are at the place
// that the query asks for: none for a limit of 0 and for an offset past the end.
func TestPagesOfManyWatchers(t *testing.T) {
	const watchers = 600 // more than are told apart in one go
	c := cachetest.Start(t, cachetest.NewStore())
	for i := range watchers {
		ctx := cacher.WithClient(t.Context(), status.Client{User: fmt.Sprintf("user-%03d", i), Address: fmt.Sprintf("10.0.0.%d:4000", i%7)})
		w, err := c.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything})
		require.NoError(t, err)
		t.Cleanup(w.Stop)
	}
	for _, order := range status.Orders() {
		for _, sort := range []string{order, "-" + order} {
			seen := map[uint64]bool{}
			for _, page := range []struct{ limit, offset, want int }{
				{0, 0, 0}, {0, 300, 0}, {0, 599, 0}, {0, 600, 0}, {0, 1 << 30, 0},
				{20, 600, 0}, {20, 601, 0}, {1000, 1 << 30, 0},
				{1000, 0, 600}, {1000, 599, 1}, {20, 590, 10},
				{1, 0, 1}, {299, 1, 299}, {256, 300, 256}, {44, 556, 44}, // these four are all
			} {
				query := fmt.Sprintf("&sort=%s&limit=%d&offset=%d", sort, page.limit, page.offset)
				got := reported(t, []*cacher.Cacher{c}, query).Caches[0].Watchers
				require.Equal(t, watchers, got.Total, query)
				require.Len(t, got.Items, page.want, query)
				if page.limit == 1 || page.limit == 299 || page.limit == 256 || page.limit == 44 {
					for _, w := range got.Items {
						seen[w.ID] = true
					}
				}
			}
			require.Len(t, seen, watchers, "pages sorted by %s have each watcher once", sort)
		}
	}
}

// No selector shows any of its values.
func TestValuesAreHidden(t *testing.T) {
	for _, selector := range []string{
		"a=SECRET", "a!=SECRET", "a in (SECRET,SECRET2)", "a notin (SECRET)", "a", "!a", "a>5", "a<5", "a=SECRET,b,!c,d in (SECRET)", "a=",
	} {
		parsed, err := labels.Parse(selector)
		require.NoError(t, err)
		got := hideLabels(parsed.String())
		require.NotContains(t, got, "SECRET", selector)
		require.NotContains(t, got, "5", selector)
		require.True(t, strings.HasPrefix(strings.TrimPrefix(got, "!"), "a"), got)
	}
	for _, selector := range []string{"a=SECRET", "a!=SECRET", `a=SECRET,b=SECRET\,c\=SECRET`, "metadata.name=SECRET"} {
		parsed, err := fields.ParseSelector(selector)
		require.NoError(t, err)
		require.NotContains(t, hideFields(parsed.String()), "SECRET", selector)
	}
	require.Equal(t, hidden, hideLabels("((SECRET"))
	require.Equal(t, hidden, hideFields("SECRET"))
	require.Equal(t, "object", scopeOf("/pods/", "/pods/ns/name", ""))
	require.Equal(t, "namespace", scopeOf("/pods/", "/pods/ns/", ""))
	require.Equal(t, "object", scopeOf("/pods/", "/pods/ns/", "metadata.name=a"))
	require.Equal(t, "all", scopeOf("/pods/", "/pods/", "metadata.name!=a"))
}

// Without the right of a user in the context nothing is shown, however the request
// came here.
func TestMayListNeedsAUser(t *testing.T) {
	h := New(Config{Authorizer: refusing{}})
	require.False(t, h.mayList(context.Background(), cachetest.Start(t, cachetest.NewStore())))
}

// refusing is an authorizer that no test may come to.
type refusing struct{ authorizer.Authorizer }
