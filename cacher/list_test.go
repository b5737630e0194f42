// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// listPage lists one page of pods.
func listPage(t testing.TB, c storage.Interface, key, rv, token string, limit int64, change ...func(*storage.ListOptions)) (*example.PodList, error) {
	t.Helper()
	opts := limited(everything(rv), limit)
	for _, change := range change {
		change(&opts)
	}
	opts.Predicate.Limit, opts.Predicate.Continue = limit, token
	pods := &example.PodList{}
	return pods, c.GetList(testContext(t), key, opts, pods)
}

// Pages are of one version, whatever is written meanwhile, and none of it is
// asked of storage.
func TestPagesAreOfOneVersion(t *testing.T) {
	store := newStore()
	for i := range 50 {
		put(store, poddata.Pod(fmt.Sprintf("ns%d/pod%02d", i%5, i), fmt.Sprintf("half=%d", i%2)))
	}
	c := start(t, store)
	for name, tc := range map[string]struct {
		key, rv string
		limit   int64
		change  func(*storage.ListOptions)
	}{
		"everything":              {"/pods/", "", 7, func(*storage.ListOptions) {}},
		"a namespace":             {"/pods/ns3/", "", 3, func(*storage.ListOptions) {}},
		"selected":                {"/pods/", "", 4, selecting("half=1", "")},
		"by a limit at a version": {"/pods/", "current", 7, func(*storage.ListOptions) {}},
		"exactly at a version":    {"/pods/", "current", 7, exactly},
		"as many as there are":    {"/pods/", "", 50, func(*storage.ListOptions) {}},
	} {
		t.Run(name, func(t *testing.T) {
			rv := strings.Replace(tc.rv, "current", fmt.Sprint(c.Status().ResourceVersion), 1)
			opts := everything(rv)
			tc.change(&opts)
			want := &example.PodList{}
			require.NoError(t, store.GetList(testContext(t), tc.key, opts, want))
			before := store.Requests()["list"]
			token, all := "", &example.PodList{}
			for {
				page, err := listPage(t, c, tc.key, rv, token, tc.limit, tc.change)
				require.NoError(t, err)
				all.Items = append(all.Items, page.Items...)
				all.ResourceVersion = page.ResourceVersion
				left := int64(len(want.Items) - len(all.Items))
				if remaining := page.RemainingItemCount; opts.Predicate.Empty() && page.Continue != "" {
					require.NotNil(t, remaining, "after %d items", len(all.Items))
					assert.Equal(t, left, *remaining, "how many items remain after %d", len(all.Items))
				}
				// After a full page of a selection nobody looks whether more is
				// selected.
				maybe := left == 0 && !opts.Predicate.Empty() && int64(len(page.Items)) == tc.limit
				if (page.Continue == "") != (left == 0) {
					assert.True(t, maybe, "after %d items %d are left, and the token is %q", len(all.Items), left, page.Continue)
				}
				if token, rv = page.Continue, ""; token == "" {
					break
				}
				// Writes before, on and after the place where the pages go on.
				put(store, poddata.Pod("ns0/pod00"))
				store.Remove(fmt.Sprintf("/pods/ns4/pod%02d", len(all.Items)))
				put(store, poddata.Pod(fmt.Sprintf("ns9/late%d", len(all.Items))))
				expectFresh(t, c)
			}
			assert.Equal(t, lineOf(want), lineOf(all))
			n := store.Requests()["list"] - before
			assert.Zero(t, n, "%d lists went to storage", n)
		})
	}
}

func single(o *storage.ListOptions) { o.Recursive = false }

// A LIST of one key has the object, or nothing.
func TestListOfOneKey(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "x=y"), poddata.Pod("a/one-more"))
	c := start(t, store)
	for _, rv := range []string{"", "0", "3"} {
		expectList(t, c, "/pods/a/one", rv, "a/one@3", single)
		expectList(t, c, "/pods/a/one", rv, "a/one@3", selecting("x=y", "metadata.name=one"), single)
		expectList(t, c, "/pods/a/one", rv, "@3", selecting("x=z", ""), single)
		expectList(t, c, "/pods/a/none", rv, "@3", single)
		expectList(t, c, "/pods/a", rv, "@3", single)
		expectList(t, c, "/pods/a/one", rv, "a/one@3", single, func(o *storage.ListOptions) { o.Predicate.Limit = 1 })
		expectList(t, c, "/pods/a/one", "", "a/one@3", single, func(o *storage.ListOptions) { o.Predicate.Continue = "not looked at" })
	}
}

func tokenOf(version string, rv int64, start string) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"v":%q,"rv":%d,"start":%q}`, version, rv, start))
}

const tokenV1 = "meta.k8s.io/v1"

// Malformed requests are refused as storage refuses them.
func TestListBadInput(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	c := start(t, store, func(c *cacher.Config) { c.FreshnessTimeout = 10 * time.Millisecond })
	for _, tc := range []struct {
		name, key, rv, match, token string
		once                        bool // not recursive
		class                       string
	}{
		{"resourceVersion", "/pods/", "x", "", "", false, "bad request"},
		{"negative resourceVersion", "/pods/", "-1", "", "", false, "bad request"},
		{"huge resourceVersion", "/pods/", "18446744073709551616", "", "", false, "bad request"},
		{"resourceVersion of one key", "/pods/a/one", "x", "", "", true, "bad request"},
		{"unknown match", "/pods/", "2", "Newest", "", false, "other"},
		{"token that is no base64", "/pods/", "", "", "%", false, "bad request"},
		{"token that is no JSON", "/pods/", "", "", "AAAA", false, "bad request"},
		{"token of another encoding", "/pods/", "", "", tokenOf("v9", 2, "a/one"), false, "bad request"},
		{"token without a version", "/pods/", "", "", tokenOf(tokenV1, 0, "a/one"), false, "bad request"},
		{"token without a start", "/pods/", "", "", tokenOf(tokenV1, 2, ""), false, "bad request"},
		{"token that climbs", "/pods/", "", "", tokenOf(tokenV1, 2, "../secrets/a"), false, "bad request"},
		{"token that climbs within", "/pods/a/", "", "", tokenOf(tokenV1, 2, "x/../../b"), false, "bad request"},
		{"token with a dot", "/pods/", "", "", tokenOf(tokenV1, 2, "./a"), false, "bad request"},
		{"token with two slashes", "/pods/", "", "", tokenOf(tokenV1, 2, "a//b"), false, "bad request"},
		{"token and resourceVersion", "/pods/", "2", "", tokenOf(tokenV1, 2, "a/one"), false, "bad request"},
		{"token of a version to come", "/pods/", "", "", tokenOf(tokenV1, 99, "a/one"), false, "too large"},
		{"token of another resource's key", "/pods/", "", "", tokenOf(tokenV1, 2, "/secrets/a"), false, "none"},
		{"token beyond the end", "/pods/", "", "", tokenOf(tokenV1, 2, "zzz"), false, "none"},
		{"token at \"0\"", "/pods/", "0", "", tokenOf(tokenV1, 2, "a"), false, "none"},
		{"key of another resource", "/secrets/", "", "", "", false, "bad key"},
		{"key that is only a prefix of ours", "/pod", "", "", "", false, "bad key"},
		{"key that climbs", "/pods/../secrets/", "", "", "", false, "bad key"},
		{"key that ends with dots", "/pods/..", "", "", "", false, "bad key"},
		{"key with a dot", "/pods/./a", "", "", "", false, "bad key"},
		{"empty key", "", "", "", "", false, "bad key"},
		{"slash", "/", "", "", "", false, "bad key"},
		{"the prefix as one key", "/pods", "", "", "", true, "bad key"},
	} {
		opts := storage.ListOptions{
			ResourceVersion: tc.rv, ResourceVersionMatch: metav1.ResourceVersionMatch(tc.match),
			Predicate: storage.Everything, Recursive: !tc.once,
		}
		opts.Predicate.Continue = tc.token
		got, want := &example.PodList{}, &example.PodList{}
		err, fromStorage := c.GetList(testContext(t), tc.key, opts, got), store.GetList(testContext(t), tc.key, opts, want)
		assert.Equal(t, tc.class, errorClass(fromStorage), "%s: storage says %v", tc.name, fromStorage)
		assert.Equal(t, tc.class, errorClass(err), "%s: %v", tc.name, err)
		if tc.class == "bad request" {
			assert.Equal(t, fmt.Sprint(fromStorage), fmt.Sprint(err), "%s: what storage says", tc.name)
		}
		if tc.class == "none" {
			assert.Equal(t, lineOf(want), lineOf(got), tc.name)
		}
	}
}

// interfaceList is a list of anything.
type interfaceList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

func (l *interfaceList) DeepCopyObject() runtime.Object { return &interfaceList{} }

// arrayList has items that are no slice.
type arrayList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items [3]example.Pod
}

func (l *arrayList) DeepCopyObject() runtime.Object { return &arrayList{} }

// A list of another type is refused by an error that names it, never by a
// panic.
func TestListIntoWhatDoesNotFit(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	c := start(t, store)
	for name, into := range map[string]runtime.Object{
		"nil":                nil,
		"nil pointer":        (*example.PodList)(nil),
		"no pointer":         byValue{},
		"no list":            &example.Pod{},
		"another list":       &metav1.PartialObjectMetadataList{},
		"list of interfaces": &interfaceList{},
		"array":              &arrayList{},
	} {
		for _, rv := range []string{"", "0"} {
			err := c.GetList(testContext(t), "/pods/", everything(rv), into)
			assert.Error(t, err, "%s: no error", name)
			if name == "another list" {
				assert.Contains(t, fmt.Sprint(err), "PartialObjectMetadata", "%s: the error names the type", name)
			}
		}
	}
}

// The items of a list are the caller's own at their top level.
func TestListDoesNotAliasTheTopLevel(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "x=y"))
	c := start(t, store)
	for _, rv := range []string{"0", "", "2"} {
		pods := expectList(t, c, "/pods/", rv, "a/one@2")
		pod := &pods.Items[0]
		assert.Equal(t, "y", pod.Labels["x"], "%+v", pod)
		assert.Equal(t, "2", pod.ResourceVersion, "%+v", pod)
		pod.Name, pod.Namespace, pod.ResourceVersion, pod.Labels = "other", "other", "9", nil
	}
}

// Lists keeps what lists were encoded to, for the serializers that it was asked
// for; a cache without it keeps nothing.
func TestLists(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{example.AddToScheme, examplev1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	stock := serializer.NewCodecFactory(scheme)
	for _, lists := range []*cacher.ListEncodings{nil, {}} {
		store := newStore()
		for i := range 40 {
			put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i)))
		}
		c := start(t, store, func(config *cacher.Config) { config.Lists = lists })
		var serializer runtime.NegotiatedSerializer = stock
		if lists != nil {
			serializer = lists.Serializer(stock)
			assert.True(t, lists.Serializer(serializer) == serializer, "a serializer is wrapped twice")
		}
		info, _ := runtime.SerializerInfoForMediaType(stock.SupportedMediaTypes(), runtime.ContentTypeJSON)
		for range 3 {
			var list example.PodList
			options := storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything}
			ctx := context.Background()
			if lists != nil {
				with, end := lists.Begin(ctx)
				defer end()
				ctx = with
			}
			err := c.GetList(ctx, "/pods/", options, &list)
			require.NoError(t, err)
			require.Len(t, list.Items, 40)
			encoded := func(s runtime.NegotiatedSerializer) string {
				var into bytes.Buffer
				require.NoError(t, s.EncoderForVersion(info.Serializer, examplev1.SchemeGroupVersion).Encode(&list, &into))
				return into.String()
			}
			want, got := encoded(stock), encoded(serializer)
			assert.Equal(t, want, got)
		}
		kept := c.Status().EncodingBytes
		assert.Equal(t, lists != nil, kept > 0, "whether bytes are kept, with %v: %d", lists, kept)
	}
}
