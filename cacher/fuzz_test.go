// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// selectors that the fuzzer chooses from: every operator, alone and together,
// with equalities that dispatch looks watchers up by and without.
var (
	fuzzLabels = []string{
		"", "color=red", "color=blue", "color!=red", "color in (red,blue)", "color in (red,green),size=1",
		"color notin (red)", "color", "!color", "size=1", "size!=1,color=red", "size in (1),color notin (blue)",
	}
	fuzzFields = []string{
		"", "metadata.name=one", "metadata.name!=one", "spec.nodeName=n1", "spec.nodeName=", "spec.nodeName!=n1",
		"metadata.namespace=a", "metadata.namespace=a,metadata.name=two", "spec.nodeName=n2,status.phase=Running", "no.such=field", "no.such=",
	}
	fuzzKeys   = []string{"/pods/", "/pods/a/", "/pods/aa/", "/pods/a/one"}
	fuzzPods   = []string{"a/one", "a/two", "aa/one", "b/one"}
	fuzzColors = []string{"", "red", "blue", "green"}
	fuzzSizes  = []string{"", "1", "2"}
	fuzzNodes  = []string{"", "n1", "n2"}
	fuzzPhases = []string{"", "Running"}
)

// fuzzInput deals out choices from the fuzzer's bytes.
type fuzzInput []byte

func (in *fuzzInput) choose(n int) int {
	if len(*in) == 0 {
		return 0
	}
	b := (*in)[0]
	*in = (*in)[1:]
	return int(b) % n
}

func pick[T any](in *fuzzInput, from []T) T { return from[in.choose(len(from))] }

// fuzzChange is what was written to a key; nil is no pod.
type fuzzChange struct {
	key           string
	before, after *example.Pod
	rv            uint64
}

// naiveWatch filters everything, one event after the other.
type naiveWatch struct {
	key       string
	predicate storage.SelectionPredicate
	want      []string
}

func (n *naiveWatch) matches(key string, pod *example.Pod) bool {
	inScope := key == n.key || (n.key[len(n.key)-1] == '/' && len(key) > len(n.key) && key[:len(n.key)] == n.key)
	if !inScope || pod == nil {
		return false
	}
	matches, err := n.predicate.Matches(pod)
	return err == nil && matches
}

func (n *naiveWatch) see(c fuzzChange) {
	was, is := n.matches(c.key, c.before), n.matches(c.key, c.after)
	name := c.key[len("/pods/"):]
	switch {
	case was && is:
		n.want = append(n.want, fmt.Sprintf("MODIFIED %s@%d", name, c.rv))
	case is:
		n.want = append(n.want, fmt.Sprintf("ADDED %s@%d", name, c.rv))
	case was:
		n.want = append(n.want, fmt.Sprintf("DELETED %s@%d", name, c.rv))
	}
}

// FuzzWatch opens watches with random scopes and selectors at random times, some of
// which resume at an earlier version, lets some of them read late, changes objects at
// random, and compares what each watch gets with a watch that filters every event by
// itself.
func FuzzWatch(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"))
	f.Add([]byte("watch the cache, and the cache watches you: again and again and again"))
	for seed := range 16 { // a spread of choices, also without -fuzz
		data := make([]byte, 400)
		x := uint32(seed)*2654435761 + 1
		for i := range data {
			x = x*1664525 + 1013904223
			data[i] = byte(x >> 24)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		inBubble(t, noPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			fuzzWatches(t, store, c, data)
		}, func(config *cacher.Config) {
			config.WatchBuffer = 2
			config.DispatchBudget = -1
			config.IndexerFuncs = poddata.Triggers()
		})
	})
}

func fuzzWatches(t *testing.T, store *memstore.Store, c *cacher.Cacher, data []byte) {
	in := fuzzInput(data)
	pods := map[string]*example.Pod{}
	var changes []fuzzChange
	var naive []*naiveWatch
	var watches []*podWatch
	var got [][]string
	write := func(key string, after *example.Pod, rv uint64) {
		changes = append(changes, fuzzChange{key, pods[key], after, rv})
		for _, n := range naive {
			n.see(changes[len(changes)-1])
		}
		pods[key] = after
	}
	for len(in) > 0 {
		switch in.choose(8) {
		case 0:
			if len(watches) == 20 {
				continue
			}
			n := &naiveWatch{key: pick(&in, fuzzKeys), predicate: poddata.Predicate(pick(&in, fuzzLabels), pick(&in, fuzzFields))}
			missed := max(0, in.choose(8)-3) * len(changes) / 4 // of what has happened
			for _, c := range changes[len(changes)-missed:] {
				n.see(c)
			}
			w := watchPods(t, c, n.key, fmt.Sprint(len(changes)-missed+1), func(o *storage.ListOptions) {
				o.Predicate = n.predicate
				o.Recursive = n.key[len(n.key)-1] == '/'
			})
			naive, watches, got = append(naive, n), append(watches, w), append(got, nil)
		case 1:
			synctest.Wait()
		case 2:
			if len(watches) > 0 {
				i := in.choose(len(watches))
				got[i] = append(got[i], received(watches[i])...)
			}
		case 3:
			key := "/pods/" + pick(&in, fuzzPods)
			if rv := store.Remove(key); rv > 0 {
				write(key, nil, rv)
			}
		default:
			pod := fuzzPod(&in)
			key, _ := poddata.Key(pod)
			write(key, pod, put(store, pod))
		}
	}
	for i, w := range watches {
		for more := received(w); len(more) > 0; more = received(w) {
			got[i] = append(got[i], more...)
		}
		assert.Equal(t, fmt.Sprint(naive[i].want), fmt.Sprint(got[i]), "watch %d of %s, labels %q, fields %q", i, naive[i].key, naive[i].predicate.Label, naive[i].predicate.Field)
	}
}

func fuzzPod(in *fuzzInput) *example.Pod {
	attrs := []string{"spec.nodeName=" + pick(in, fuzzNodes), "status.phase=" + pick(in, fuzzPhases)}
	name := pick(in, fuzzPods)
	if color := pick(in, fuzzColors); color != "" {
		attrs = append(attrs, "color="+color)
	}
	if size := pick(in, fuzzSizes); size != "" {
		attrs = append(attrs, "size="+size)
	}
	return poddata.Pod(name, attrs...)
}

// errorClass is what callers tell errors apart by.
func errorClass(err error) string {
	switch {
	case err == nil:
		return "none"
	case strings.Contains(err.Error(), "invalid key"), strings.Contains(err.Error(), "empty key"):
		return "bad key"
	case storage.IsNotFound(err):
		return "not found"
	case storage.IsTooLargeResourceVersion(err):
		return "too large"
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return "expired"
	case apierrors.IsBadRequest(err):
		return "bad request"
	case apierrors.IsTooManyRequests(err):
		return "too many requests"
	}
	return "other"
}

// tokenOf is a continue token before it is encoded.
func tokenOf(rv int64, start string) string {
	return fmt.Sprintf(`{"v":"meta.k8s.io/v1","rv":%d,"start":%q}`, rv, start)
}

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
	if errorClass(err) == "bad request" {
		require.EqualError(t, err, fromStorage.Error())
	}
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
// the storage, and so do the pages that follow: a client may make its tokens itself. A
// token that begins with a brace is not encoded yet.
func FuzzListOptions(f *testing.F) {
	store, c := fuzzedCache(f)
	for _, seed := range []struct {
		key, rv, match, token string
		limit                 int64
		recursive             bool
	}{
		{"/pods/", "", "", "", 0, true}, {"/pods/", "0", "", "", 2, true}, {"/pods/a", "5", "", "", 1, true},
		{"/pods/a/", "5", "Exact", "", 0, true}, {"/pods/a/one", "5", "Exact", "", 0, false}, {"/pods/a/one", "6", "NotOlderThan", "", 3, false},
		{"/pods/a/one", "x", "", "", 0, false}, {"/pods/", "2", "Exact", "", 0, true}, {"/pods/", "99", "Exact", "", 0, true},
		{"/pods/", "x", "", "", 0, true}, {"/pods/", "18446744073709551615", "Exact", "", 0, true},
		{"/pods/", "18446744073709551616", "", "", 0, true}, {"/pods/", "7", "Newest", "", 0, true},
		{"/pods/", "6", "", tokenOf(6, "a/one"), 0, true}, {"/pods/", "0", "Exact", tokenOf(2, "a/two"), 1, true},
		{"/pods/", "0", "Exact", tokenOf(-1, "a/one"), 1, true}, {"/pods/..", "", "", "", 0, true}, {"/pods/../secrets/", "", "", "", 0, true},
		{"/pod", "", "", "", -1, true}, {"/pods", "", "", "", 0, false}, {"/", "", "", "", 0, false}, {"", "", "", "", 0, true},
		{"/pods//", "", "", "", 0, true},
	} {
		f.Add(seed.key, seed.rv, seed.match, seed.token, seed.limit, seed.recursive)
	}
	for _, token := range []string{
		"%", "AAAA", `{"v":"v9","rv":6,"start":"a/one"}`, tokenOf(7, "a/one") + "\n", tokenOf(7, "a/one") + `{"v":"meta.k8s.io/v1"}`,
		tokenOf(6, "a/two"), tokenOf(6, "a/two\x00"), tokenOf(-1, "a/two\x00"), tokenOf(0, "a/two"), tokenOf(99, "a/one"), tokenOf(2, "a/one"),
		tokenOf(math.MaxInt64, "a/one"), tokenOf(math.MinInt64, "a/one"), tokenOf(6, "../secrets"), tokenOf(6, "x/../../b"), tokenOf(6, "/secrets/a"),
		tokenOf(7, ""), tokenOf(7, "//a"), tokenOf(5, "a/./one"), tokenOf(5, "one"), tokenOf(5, "../b/one"), tokenOf(7, "\xff\xff"),
	} {
		for _, key := range []string{"/pods/", "/pods/a", "/pods/a/"} {
			f.Add(key, "", "", token, int64(1), true)
			f.Add(key, "", "", token, int64(0), true)
		}
	}
	f.Fuzz(func(t *testing.T, key, rv, match, token string, limit int64, recursive bool) {
		if strings.HasPrefix(token, "{") {
			token = base64.RawURLEncoding.EncodeToString([]byte(token))
		}
		opts := storage.ListOptions{
			ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatch(match),
			Predicate: storage.Everything, Recursive: recursive,
		}
		opts.Predicate.Limit, opts.Predicate.Continue = limit, token
		for range 6 { // more pages than there are objects
			if opts.Predicate.Continue = requireSameList(t, store, c, key, opts); opts.Predicate.Continue == "" {
				return
			}
			opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
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
