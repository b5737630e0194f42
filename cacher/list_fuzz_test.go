// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// fuzzedCache is a cache beside its storage, at version 7: 2 is compacted, and
// the window of changes begins at 5.
func fuzzedCache(f *testing.F) (*memstore.Store, *cacher.Cacher) {
	store := newStore(poddata.Pod("a/one", "spec.nodeName=n1"), poddata.Pod("a/two", "color=red"), poddata.Pod("b/one"), poddata.Pod("b/two", "color=blue", "spec.nodeName=n2")) // 2..5
	store.Compact(3)
	c := start(f, store, func(c *cacher.Config) {
		c.FreshnessTimeout, c.MaxFallbackLists = 10*time.Millisecond, 1000
		c.IndexerFuncs = poddata.Triggers()
	})
	put(store, poddata.Pod("a/one", "x=y", "color=red")) // 6
	store.Remove("/pods/a/two")                          // 7
	expectFresh(f, c)
	return store, c
}

// requireSameList sends one LIST to the cache and to the storage under it, which
// validates options as k8s.io/apiserver's does, and wants the same: the same class
// of error, or the same items at the same version with an equivalent continue token,
// which is returned. At resourceVersion "0" the cache ignores the limit.
func requireSameList(t *testing.T, store *memstore.Store, c *cacher.Cacher, key string, opts storage.ListOptions) (token string) {
	t.Helper()
	got, want, stored := &example.PodList{}, &example.PodList{}, opts
	version, parsed := strconv.ParseUint(opts.ResourceVersion, 10, 64)
	if parsed == nil && version == 0 && opts.ResourceVersionMatch != metav1.ResourceVersionMatchExact {
		if stored.Predicate.Limit = 0; opts.Predicate.Continue != "" {
			return "" // storage, which counts the limit, may have answered
		}
	}
	err, fromStorage := c.GetList(t.Context(), key, opts, got), store.GetList(t.Context(), key, stored, want)
	if parsed == nil && version > math.MaxInt64 {
		return "" // which storage takes for a negative one, and that for the latest
	}
	require.Equal(t, errorClass(fromStorage), errorClass(err), "got %v, storage says %v", err, fromStorage)
	if err != nil {
		return ""
	}
	require.Equal(t, lineOf(want), lineOf(got))
	if got.Continue == "" && want.Continue != "" {
		requireNothingFollows(t, store, key, opts, want.Continue)
		return ""
	}
	require.Equal(t, placeOf(t, want.Continue, key), placeOf(t, got.Continue, key))
	return got.Continue
}

// placeOf returns the version and the key that a continue token stands for.
func placeOf(t *testing.T, token, key string) string {
	t.Helper()
	if token == "" {
		return ""
	}
	from, rv, err := storage.DecodeContinue(token, strings.TrimSuffix(key, "/")+"/")
	require.NoError(t, err)
	return fmt.Sprintf("%q at %d", from, rv)
}

// requireNothingFollows wants the pages from the token on to have no objects: the
// cache, which looks a selector up by index, may know that before storage does.
func requireNothingFollows(t *testing.T, store *memstore.Store, key string, opts storage.ListOptions, token string) {
	t.Helper()
	require.False(t, opts.Predicate.Empty(), "a page is followed by none")
	for opts.ResourceVersion, opts.ResourceVersionMatch = "", ""; token != ""; {
		page := &example.PodList{}
		opts.Predicate.Continue = token
		require.NoError(t, store.GetList(t.Context(), key, opts, page))
		require.Empty(t, page.Items)
		token = page.Continue
	}
}

// FuzzListOptions compares the cache's answer to any list options with that of
// the storage.
func FuzzListOptions(f *testing.F) {
	store, c := fuzzedCache(f)
	for _, seed := range []struct {
		key, rv, match, token string
		limit                 int64
		recursive             bool
	}{
		{"/pods/", "", "", "", 0, true},
		{"/pods/", "0", "", "", 2, true},
		{"/pods/a", "5", "", "", 1, true},
		{"/pods/a/", "5", "Exact", "", 0, true},
		{"/pods/a/one", "5", "Exact", "", 0, false},
		{"/pods/a/one", "6", "NotOlderThan", "", 3, false},
		{"/pods/", "2", "Exact", "", 0, true},
		{"/pods/", "99", "Exact", "", 0, true},
		{"/pods/", "x", "", "", 0, true},
		{"/pods/", "18446744073709551615", "Exact", "", 0, true},
		{"/pods/", "7", "Newest", "", 0, true},
		{"/pods/", "", "", tokenOf(tokenV1, 6, "a/two"), 1, true},
		{"/pods/", "", "", tokenOf(tokenV1, -1, "a/two"), 1, true},
		{"/pods/", "0", "Exact", tokenOf(tokenV1, 2, "a/two"), 1, true},
		{"/pods/", "", "", tokenOf(tokenV1, 0, "a/two"), 1, true},
		{"/pods/", "", "", tokenOf(tokenV1, 6, "../secrets"), 1, true},
		{"/pods/..", "", "", "", 0, true},
		{"/pod", "", "", "", -1, true},
		{"/", "", "", "", 0, false},
		{"/pods//", "", "", "", 0, true},
	} {
		f.Add(seed.key, seed.rv, seed.match, seed.token, seed.limit, seed.recursive)
	}
	f.Fuzz(func(t *testing.T, key, rv, match, token string, limit int64, recursive bool) {
		opts := storage.ListOptions{
			ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatch(match),
			Predicate: storage.Everything, Recursive: recursive,
		}
		opts.Predicate.Limit, opts.Predicate.Continue = limit, token
		requireSameList(t, store, c, key, opts)
	})
}

// FuzzContinueTokens compares, for continue tokens of any content and coding, the
// pages that follow them: a client may make its tokens itself.
func FuzzContinueTokens(f *testing.F) {
	store, c := fuzzedCache(f)
	for _, seed := range []struct {
		key, version, start string
		rv, limit           int64
		extra               string
	}{
		{"/pods/", tokenV1, "a/two\x00", 6, 1, ""},
		{"/pods/", tokenV1, "a/two\x00", -1, 1, ""},
		{"/pods/a", tokenV1, "one", 5, 0, ""},
		{"/pods/a/", tokenV1, "../b/one", 5, 0, ""},
		{"/pods/a/", tokenV1, "/b/one", 5, 0, ""},
		{"/pods/", tokenV1, "a/./one", 5, 0, ""},
		{"/pods/", tokenV1, "//a", 7, 2, ""},
		{"/pods/", tokenV1, "\xff\xff", 7, 2, ""},
		{"/pods/", tokenV1, "", 7, 2, ""},
		{"/pods/", tokenV1, "a/one", 2, 2, ""},
		{"/pods/", tokenV1, "a/one", math.MaxInt64, 2, ""},
		{"/pods/", tokenV1, "a/one", math.MinInt64, 2, ""},
		{"/pods/", "meta.k8s.io/v2", "a/one", 7, 2, ""},
		{"/pods/", tokenV1, "a/one", 7, math.MaxInt64, `{"v":"meta.k8s.io/v1"}`},
		{"/pods/", tokenV1, "a/one", 7, math.MinInt64, "\n"},
		{"/pods/", tokenV1, "a/one", 7, 2, "AAAA"},
	} {
		f.Add(seed.key, seed.version, seed.start, seed.rv, seed.limit, seed.extra)
	}
	f.Fuzz(func(t *testing.T, key, version, start string, rv, limit int64, extra string) {
		token, err := json.Marshal(map[string]any{"v": version, "rv": rv, "start": start})
		require.NoError(t, err)
		opts := storage.ListOptions{Predicate: storage.Everything, Recursive: true}
		opts.Predicate.Limit, opts.Predicate.Continue = limit, base64.RawURLEncoding.EncodeToString(append(token, extra...))
		for range 6 { // more pages than there are objects
			if opts.Predicate.Continue = requireSameList(t, store, c, key, opts); opts.Predicate.Continue == "" {
				return
			}
		}
		require.Fail(t, "the pages do not end")
	})
}

// FuzzGet compares the cache's answer to a GET with that of the storage.
func FuzzGet(f *testing.F) {
	store, c := fuzzedCache(f)
	for _, seed := range []struct {
		key, rv string
		ignore  bool
	}{
		{"/pods/a/one", "", false}, {"/pods/a/one", "0", false}, {"/pods/a/one", "7", false}, {"/pods/a/one", "8", false},
		{"/pods/a/two", "", true}, {"/pods/a/two", "0", false}, {"/pods/a/", "", false}, {"/pods/a", "0", true}, {"/pods/", "0", false},
		{"/pods/a/one", "-1", false}, {"/pods/a/one", "18446744073709551616", false}, {"/pods/a/../b/one", "", false}, {"", "", false},
		{"/secrets/a/one", "0", false}, {"/pods/a/one/", "", false}, {"/pods//one", "0", false}, {"/pods/a/one\x00", "", false},
	} {
		f.Add(seed.key, seed.rv, seed.ignore)
	}
	f.Fuzz(func(t *testing.T, key, rv string, ignore bool) {
		opts := storage.GetOptions{ResourceVersion: rv, IgnoreNotFound: ignore}
		got, want := &example.Pod{}, &example.Pod{}
		err, fromStorage := c.Get(t.Context(), key, opts, got), store.Get(t.Context(), key, opts, want)
		require.Equal(t, errorClass(fromStorage), errorClass(err), "got %v, storage says %v", err, fromStorage)
		require.Equal(t, want, got)
	})
}

// FuzzSelectors lists and watches with any selectors at several versions, and
// compares with the storage, and with each event by itself.
func FuzzSelectors(f *testing.F) {
	store, c := fuzzedCache(f)
	for _, label := range fuzzLabels {
		f.Add(label, "", "", int64(0))
	}
	for _, field := range fuzzFields {
		f.Add("color", field, "6", int64(1))
	}
	for _, seed := range [][2]string{
		{"color in ()", ""}, {"color in (,red)", ""}, {"!color,color", ""}, {"color=red,color=blue", ""}, {"color=", ""}, {"size>1,size<0", ""},
		{"x==y,color notin (red,blue,)", ""}, {"", `metadata.name=o\,ne`}, {"", "metadata.name=one,metadata.name!=one"}, {"", "spec.nodeName==n1,spec.nodeName=n2"},
		{"", "metadata.name="}, {"", "=,=="}, {"", "metadata.namespace=a/../b"}, {"", `spec.nodeName=\\`}, {"a/b/c=d", ""}, {"kubernetes.io/x in (y)", ""},
	} {
		f.Add(seed[0], seed[1], "5", int64(2))
	}
	f.Fuzz(func(t *testing.T, label, field, rv string, limit int64) {
		byLabel, err := labels.Parse(label)
		if err != nil {
			return // the server refuses it
		}
		byField, err := fields.ParseSelector(field)
		if err != nil {
			return
		}
		predicate := storage.SelectionPredicate{Label: byLabel, Field: byField, GetAttrs: poddata.Attrs}
		for _, key := range []string{"/pods/", "/pods/a"} {
			for _, match := range []metav1.ResourceVersionMatch{"", metav1.ResourceVersionMatchExact, metav1.ResourceVersionMatchNotOlderThan} {
				opts := storage.ListOptions{ResourceVersion: rv, ResourceVersionMatch: match, Predicate: predicate, Recursive: true}
				requireSameList(t, store, c, key, opts)
				opts.Predicate.Limit = limit
				if token := requireSameList(t, store, c, key, opts); token != "" {
					opts.ResourceVersion, opts.ResourceVersionMatch, opts.Predicate.Continue = "", "", token
					requireSameList(t, store, c, key, opts)
				}
			}
			requireInitialState(t, store, c, key, predicate)
		}
	})
}

// requireInitialState wants a watch to begin with what a list has.
func requireInitialState(t *testing.T, store *memstore.Store, c *cacher.Cacher, key string, predicate storage.SelectionPredicate) {
	t.Helper()
	list := &example.PodList{}
	require.NoError(t, store.GetList(t.Context(), key, storage.ListOptions{Predicate: predicate, Recursive: true}, list))
	w := watchPods(t, c, key, "7", streaming, func(o *storage.ListOptions) {
		bookmarks := predicate
		bookmarks.AllowWatchBookmarks = true
		o.Predicate = bookmarks
	})
	defer w.cancel()
	for i := range list.Items {
		w.expect(line(watch.Event{Type: watch.Added, Object: &list.Items[i]}))
	}
	require.Contains(t, w.next(), "BOOKMARK")
}
