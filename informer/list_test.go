// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

func TestListSelects(t *testing.T) {
	c := start(t, newStore(poddata.Pod("ns1/a", "app=web"), poddata.Pod("ns1/b", "spec.nodeName=n1"), poddata.Pod("ns11/a", "app=web"), poddata.Pod("ns2/c", "app=db")))
	all, ns1 := informer.ListerWatcher(c), informer.ListerWatcher(c, informer.InNamespace("ns1"))
	for name, test := range map[string]struct {
		from    *informer.ListWatch
		options metav1.ListOptions
		want    string
	}{
		"everything":                             {all, metav1.ListOptions{}, "ns1/a ns1/b ns11/a ns2/c@5"},
		"a label":                                {all, metav1.ListOptions{LabelSelector: "app=web"}, "ns1/a ns11/a@5"},
		"labels":                                 {all, metav1.ListOptions{LabelSelector: "app in (web,db),app!=web"}, "ns2/c@5"},
		"a field":                                {all, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}, "ns1/b@5"},
		"a namespace":                            {ns1, metav1.ListOptions{}, "ns1/a ns1/b@5"},
		"a namespace and a label":                {ns1, metav1.ListOptions{LabelSelector: "app=web"}, "ns1/a@5"},
		"a namespace by its field":               {all, metav1.ListOptions{FieldSelector: "metadata.namespace=ns1"}, "ns1/a ns1/b@5"},
		"a name in a namespace":                  {ns1, metav1.ListOptions{FieldSelector: "metadata.name=b"}, "ns1/b@5"},
		"a name and a namespace":                 {all, metav1.ListOptions{FieldSelector: "metadata.name=a,metadata.namespace=ns11"}, "ns11/a@5"},
		"a name in all namespaces":               {all, metav1.ListOptions{FieldSelector: "metadata.name=a"}, "ns1/a ns11/a@5"},
		"a name that is not there":               {ns1, metav1.ListOptions{FieldSelector: "metadata.name=c"}, "@5"},
		"a name that can't be one":               {ns1, metav1.ListOptions{FieldSelector: "metadata.name=../ns2/c"}, "@5"},
		"a name and something else":              {ns1, metav1.ListOptions{FieldSelector: "metadata.name=b,spec.nodeName=n2"}, "@5"},
		"another namespace than one's own":       {ns1, metav1.ListOptions{FieldSelector: "metadata.namespace=ns2"}, "@5"},
		"a namespace that can't be one":          {all, metav1.ListOptions{FieldSelector: "metadata.namespace=ns1/../ns2"}, "@5"},
		"all namespaces":                         {informer.ListerWatcher(c, informer.InNamespace(metav1.NamespaceAll)), metav1.ListOptions{}, "ns1/a ns1/b ns11/a ns2/c@5"},
		"the last namespace given":               {informer.ListerWatcher(c, informer.InNamespace("ns1"), informer.InNamespace("ns2")), metav1.ListOptions{}, "ns2/c@5"},
		"any version":                            {all, metav1.ListOptions{ResourceVersion: "0"}, "ns1/a ns1/b ns11/a ns2/c@5"},
		"not older than":                         {all, metav1.ListOptions{ResourceVersion: "3", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}, "ns1/a ns1/b ns11/a ns2/c@5"},
		"exactly":                                {all, metav1.ListOptions{ResourceVersion: "3", ResourceVersionMatch: metav1.ResourceVersionMatchExact}, "ns1/a ns1/b@3"},
		"what only a watch asks for is moot":     {all, metav1.ListOptions{AllowWatchBookmarks: true, Watch: true}, "ns1/a ns1/b ns11/a ns2/c@5"},
		"a timeout that is not used up":          {all, metav1.ListOptions{TimeoutSeconds: new(int64(60))}, "ns1/a ns1/b ns11/a ns2/c@5"},
		"a timeout of zero is none":              {all, metav1.ListOptions{TimeoutSeconds: new(int64)}, "ns1/a ns1/b ns11/a ns2/c@5"},
		"a timeout beyond what Go can count":     {all, metav1.ListOptions{TimeoutSeconds: new(int64(math.MaxInt64))}, "ns1/a ns1/b ns11/a ns2/c@5"},
		"a shard, while the feature gate is off": {all, metav1.ListOptions{ShardSelector: "?"}, "ns1/a ns1/b ns11/a ns2/c@5"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, list(t, test.from, test.options))
		})
	}
}

// Tweaks see every request, in the order given, and what kind it is.
func TestTweaks(t *testing.T) {
	c := start(t, newStore(poddata.Pod("a/web", "app=web"), poddata.Pod("a/db", "app=db")))
	var seen []bool
	l := informer.ListerWatcher(c,
		informer.WithTweak(func(o *metav1.ListOptions) { o.LabelSelector = "app=db" }),
		informer.WithTweak(func(o *metav1.ListOptions) {
			assert.Equal(t, "app=db", o.LabelSelector, "the selector that the second tweak sees")
			o.LabelSelector = "app=web"
			seen = append(seen, o.Watch)
			o.Watch = !o.Watch // changes nothing
		}))
	exactly := metav1.ListOptions{ResourceVersion: "3", ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	assert.Equal(t, "a/web@3", list(t, l, exactly))
	startWatch(t, l, metav1.ListOptions{ResourceVersion: "0"}).expect("ADDED a/web@2")
	assert.Equal(t, []bool{false, true}, seen, "whether the list and the watch were seen as watches")
}

// The pages of a list are of one version, whatever happens meanwhile, and in
// one namespace if that is what a field selector says.
func TestListInPages(t *testing.T) {
	for name, test := range map[string]struct {
		options metav1.ListOptions
		want    []string
	}{
		"everything":  {metav1.ListOptions{Limit: 2}, []string{"a/1 a/2@6", "a/3 b/1@6", "b/2@6"}},
		"any version": {metav1.ListOptions{Limit: 3, ResourceVersion: "0"}, []string{"a/1 a/2 a/3 b/1 b/2@6"}},
		"a namespace": {metav1.ListOptions{Limit: 2, FieldSelector: "metadata.namespace=a"}, []string{"a/1 a/2@6", "a/3@6"}},
		"a selector":  {metav1.ListOptions{Limit: 1, LabelSelector: "app=web"}, []string{"a/2@6", "b/2@6"}},
	} {
		t.Run(name, func(t *testing.T) {
			store := newStore(poddata.Pod("a/1"), poddata.Pod("a/2", "app=web"), poddata.Pod("a/3"), poddata.Pod("b/1"), poddata.Pod("b/2", "app=web"))
			l := informer.ListerWatcher(start(t, store))
			options := test.options
			for i, want := range test.want {
				object, err := l.ListWithContext(t.Context(), options)
				require.NoError(t, err)
				assert.Equal(t, want, listed(t, object), "page %d", i)
				options.Continue, options.ResourceVersion = object.(*example.PodList).Continue, ""
				require.Equal(t, i == len(test.want)-1, options.Continue == "", "page %d of %d continues with %q", i+1, len(test.want), options.Continue)
				put(store, poddata.Pod("a/3", "app=web"))
				store.Remove("/pods/b/1")
			}
		})
	}
}

func TestListEndsWithItsTime(t *testing.T) {
	t.Run("its own", func(t *testing.T) {
		inBubbleOf(t, func(t *testing.T, l *informer.ListWatch) {
			begun := time.Now() // in virtual time
			_, err := l.ListWithContext(t.Context(), metav1.ListOptions{TimeoutSeconds: new(int64(1))})
			assert.True(t, apierrors.IsTimeout(err), "%v", err)
			assert.Equal(t, time.Second, time.Since(begun), "when the list ends")
			assert.False(t, apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge), "a Reflector would take %v for a version that is too large", err)
		})
	})
	t.Run("the context's", func(t *testing.T) {
		inBubbleOf(t, func(t *testing.T, l *informer.ListWatch) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := l.ListWithContext(ctx, metav1.ListOptions{TimeoutSeconds: new(int64(2))})
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
	})
}

// inBubbleOf runs f with a ListWatch whose consistent lists take for ever.
func inBubbleOf(t *testing.T, f func(*testing.T, *informer.ListWatch)) {
	inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		opened := store.Gate("version")
		defer opened()
		f(t, informer.ListerWatcher(c))
	}, func(config *cacher.Config) { config.FreshnessTimeout = time.Hour })
}

func TestListErrors(t *testing.T) {
	store := newStore(poddata.Pod("a/one"), poddata.Pod("a/two"))
	l := informer.ListerWatcher(start(t, store, func(config *cacher.Config) { config.FreshnessTimeout = 10 * time.Millisecond }))
	object, err := l.ListWithContext(t.Context(), metav1.ListOptions{Limit: 1})
	require.NoError(t, err)
	token := object.(*example.PodList).Continue
	put(store, poddata.Pod("a/three"))
	store.Compact(put(store, poddata.Pod("a/four")))
	for name, test := range map[string]struct {
		options metav1.ListOptions
		is      func(error) bool
	}{
		"an old version":         {metav1.ListOptions{ResourceVersion: "2", ResourceVersionMatch: metav1.ResourceVersionMatchExact}, apierrors.IsResourceExpired},
		"an old continue token":  {metav1.ListOptions{Continue: token}, apierrors.IsResourceExpired},
		"a version to come":      {metav1.ListOptions{ResourceVersion: "1000"}, storage.IsTooLargeResourceVersion},
		"exactly one to come":    {metav1.ListOptions{ResourceVersion: "1000", ResourceVersionMatch: metav1.ResourceVersionMatchExact}, storage.IsTooLargeResourceVersion},
		"a context that is done": {metav1.ListOptions{}, func(err error) bool { return errors.Is(err, context.Canceled) }},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if name == "a context that is done" {
				cancel()
			}
			object, err := l.ListWithContext(ctx, test.options)
			assert.True(t, test.is(err), "got %v, %v", object, err)
		})
	}
}

// An error of storage without an API status becomes an internal error, as in an
// API server.
func TestStorageErrorsBecomeStatuses(t *testing.T) {
	store := newStore()
	l := informer.ListerWatcher(start(t, store))
	store.Fail("version", errors.New("no such luck")) // storage is read instead
	store.Fail("list", errors.New("no such luck"))
	_, err := l.ListWithContext(t.Context(), metav1.ListOptions{})
	assert.True(t, apierrors.IsInternalError(err), "got %#v", err)
	store.Fail("list", storage.NewUnreachableError("/pods/", 0))
	_, err = l.ListWithContext(t.Context(), metav1.ListOptions{})
	assert.True(t, apierrors.IsServerTimeout(err), "got %#v", err)
}
