// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// ask lists, or watches, and returns the error.
func ask(t *testing.T, l *informer.ListWatch, verb string, options metav1.ListOptions) error {
	t.Helper()
	if verb == "list" {
		_, err := l.ListWithContext(t.Context(), options)
		return err
	}
	w, err := l.WatchWithContext(t.Context(), options)
	if err == nil {
		w.Stop()
	}
	return err
}

// An option that can't be used is refused with its name and value.
func TestBadInput(t *testing.T) {
	exact, notOlder := metav1.ResourceVersionMatchExact, metav1.ResourceVersionMatchNotOlderThan
	const list, watch, both = "list", "watch", "list watch"
	for name, test := range map[string]struct {
		verbs   string
		options metav1.ListOptions
		want    string // what the message begins with
	}{
		"a label selector":                {both, metav1.ListOptions{LabelSelector: "a in"}, `ListOptions.labelSelector is "a in": `},
		"a label's name":                  {both, metav1.ListOptions{LabelSelector: "a b=c"}, `ListOptions.labelSelector is "a b=c": `},
		"a field selector":                {both, metav1.ListOptions{FieldSelector: "a"}, `ListOptions.fieldSelector is "a": `},
		"a field that there is not":       {both, metav1.ListOptions{FieldSelector: "spec.nodename=x"}, `ListOptions.fieldSelector is "spec.nodename=x": pods can't be selected by "spec.nodename", only by metadata.name, `},
		"a resourceVersion":               {both, metav1.ListOptions{ResourceVersion: "new"}, `ListOptions.resourceVersion is "new": `},
		"a negative resourceVersion":      {both, metav1.ListOptions{ResourceVersion: "-1"}, `ListOptions.resourceVersion is "-1": `},
		"a negative timeout":              {both, metav1.ListOptions{TimeoutSeconds: new(int64(-1))}, `ListOptions.timeoutSeconds is "-1": must not be negative`},
		"a match of nothing":              {list, metav1.ListOptions{ResourceVersionMatch: exact}, `ListOptions.resourceVersionMatch is "Exact": `},
		"a match that there is not":       {list, metav1.ListOptions{ResourceVersionMatch: "About", ResourceVersion: "1"}, `ListOptions.resourceVersionMatch is "About": `},
		"exactly any version":             {list, metav1.ListOptions{ResourceVersionMatch: exact, ResourceVersion: "0"}, `ListOptions.resourceVersionMatch is "Exact": `},
		"a match with a token":            {list, metav1.ListOptions{ResourceVersionMatch: notOlder, ResourceVersion: "1", Continue: "x"}, `ListOptions.resourceVersionMatch is "NotOlderThan": `},
		"a list with initial events":      {list, metav1.ListOptions{SendInitialEvents: new(true)}, `ListOptions.sendInitialEvents is "true": `},
		"initial events without a match":  {watch, metav1.ListOptions{SendInitialEvents: new(false)}, `ListOptions.resourceVersionMatch is "": `},
		"initial events exactly":          {watch, metav1.ListOptions{SendInitialEvents: new(true), ResourceVersionMatch: exact}, `ListOptions.resourceVersionMatch is "Exact": `},
		"a match without initial events":  {watch, metav1.ListOptions{ResourceVersionMatch: notOlder}, `ListOptions.resourceVersionMatch is "NotOlderThan": `},
		"initial events with a token too": {watch, metav1.ListOptions{SendInitialEvents: new(true), ResourceVersionMatch: notOlder, Continue: "x"}, `ListOptions.resourceVersionMatch is "NotOlderThan": `},
	} {
		l := informer.ListerWatcher(start(t, newStore()))
		for verb := range strings.FieldsSeq(test.verbs) {
			t.Run(verb+" of "+name, func(t *testing.T) {
				err := ask(t, l, verb, test.options)
				require.True(t, apierrors.IsBadRequest(err), "%v", err)
				assert.True(t, strings.HasPrefix(err.Error(), test.want), "got %v, want %s...", err, test.want)
			})
		}
	}
}

func TestBadShard(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, true)
	l := informer.ListerWatcher(start(t, newStore()))
	for _, verb := range []string{"list", "watch"} {
		err := ask(t, l, verb, metav1.ListOptions{ShardSelector: "half"})
		require.True(t, apierrors.IsBadRequest(err), "%s: got %v", verb, err)
		assert.True(t, strings.HasPrefix(err.Error(), `ListOptions.shardSelector is "half": `), "%s: got %v", verb, err)
	}
}

func TestShard(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, true)
	store := newStore()
	for _, name := range []string{"a/1", "a/2", "a/3"} {
		pod := poddata.Pod(name)
		pod.UID = "they are all alike"
		put(store, pod)
	}
	l := informer.ListerWatcher(start(t, store))
	lower := "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')"
	upper := "shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')"
	var sizes []int
	for _, shard := range []string{lower, upper, lower + " || " + upper} {
		object, err := l.ListWithContext(t.Context(), metav1.ListOptions{ShardSelector: shard})
		require.NoError(t, err)
		sizes = append(sizes, len(object.(*example.PodList).Items))
	}
	// One UID is in one of the halves, and in both together.
	assert.Zero(t, min(sizes[0], sizes[1]), "the shards have %v objects", sizes)
	assert.Equal(t, 3, max(sizes[0], sizes[1]), "the shards have %v objects", sizes)
	assert.Equal(t, 3, sizes[2], "the shards have %v objects", sizes)
}

// A namespace is the key prefix that Config.KeyFunc gives its objects.
func TestNamespaceByKey(t *testing.T) {
	keyed := func(key func(namespace, name string) string) func(*cacher.Config) {
		return func(config *cacher.Config) {
			config.KeyFunc = func(object runtime.Object) (string, error) {
				pod := object.(*example.Pod)
				return key(pod.Namespace, pod.Name), nil
			}
		}
	}
	for name, test := range map[string]struct {
		namespace string
		change    func(*cacher.Config)
		want      string // the error, "" for none
	}{
		"the usual layout":   {"a", func(*cacher.Config) {}, ""},
		"a level above":      {"a", keyed(func(ns, name string) string { return "/pods/tenant/" + ns + "/" + name }), ""},
		"a level in between": {"a", keyed(func(ns, name string) string { return "/pods/" + ns + "/live/" + name }), ""},
		"no namespaces":      {"a", keyed(func(_, name string) string { return "/pods/" + name }), `informer.InNamespace is "a": pods has no namespaces`},
		"names first":        {"a", keyed(func(ns, name string) string { return "/pods/" + name + "/" + ns }), `informer.InNamespace is "a": the keys of pods do not begin with the namespace: one key is "/pods/x/a"`},
		"scattered by name":  {"a", keyed(func(ns, name string) string { return "/pods/" + name + "/" + ns + "/" + name }), `informer.InNamespace is "a": the keys of pods do not begin with the namespace: one key is "/pods/y/a/y"`},
		"elsewhere":          {"a", keyed(func(ns, name string) string { return "/other/" + ns + "/" + name }), `informer.InNamespace is "a": the keys of pods do not begin with the namespace: one key is "/other/a/x"`},
		"no keys": {"a", func(config *cacher.Config) {
			config.KeyFunc = func(runtime.Object) (string, error) { return "", errors.New("no key") }
		}, `informer.InNamespace is "a": cacher.Config.KeyFunc fails for an empty object: no key`},
		"a path":   {"a/b", func(*cacher.Config) {}, `informer.InNamespace is "a/b": not a valid name of a namespace: may not contain '/'`},
		"a way up": {"..", func(*cacher.Config) {}, `informer.InNamespace is "..": not a valid name of a namespace: may not be '..'`},
	} {
		t.Run(name, func(t *testing.T) {
			store := newStore()
			c := start(t, store, test.change)
			l := informer.ListerWatcher(c, informer.InNamespace(test.namespace))
			for _, verb := range []string{"list", "watch"} {
				err := ask(t, l, verb, metav1.ListOptions{})
				if test.want == "" {
					assert.NoError(t, err, verb)
				} else {
					assert.True(t, apierrors.IsBadRequest(err), "%s: %v", verb, err)
					assert.EqualError(t, err, test.want, verb)
				}
			}
			if test.want != "" {
				return
			}
			for _, pod := range []*example.Pod{poddata.Pod("a/one"), poddata.Pod("aa/two"), poddata.Pod("b/three")} {
				key, err := c.Config().KeyFunc(pod)
				require.NoError(t, err)
				store.Put(key, pod)
			}
			assert.Equal(t, "a/one@4", list(t, l, metav1.ListOptions{}))
			assert.Equal(t, "a/one@4", list(t, l, metav1.ListOptions{FieldSelector: "metadata.name=one"}), "by name")
			assert.Equal(t, "@4", list(t, l, metav1.ListOptions{FieldSelector: "metadata.name=../b/three"}), "by what is no name")
		})
	}
}

// An object without a namespace is found by its name, at its key.
func TestClusterScoped(t *testing.T) {
	store := newStore()
	c := start(t, store, func(config *cacher.Config) {
		config.KeyFunc = func(object runtime.Object) (string, error) { return storage.NoNamespaceKeyFunc(poddata.Prefix, object) }
	})
	store.Put("/pods/one", poddata.Pod("/one"))
	store.Put("/pods/two", poddata.Pod("/two"))
	l := informer.ListerWatcher(c)
	for field, want := range map[string]string{
		"":                                       "/one /two@3",
		"metadata.name=two":                      "/two@3",
		"metadata.namespace=":                    "/one /two@3",
		"metadata.namespace=a":                   "@3",
		"metadata.name=two,metadata.namespace=a": "@3",
	} {
		assert.Equal(t, want, list(t, l, metav1.ListOptions{FieldSelector: field}), "%q", field)
	}
	w := startWatch(t, l, metav1.ListOptions{ResourceVersion: "1", FieldSelector: "metadata.name=two"})
	w.expect("ADDED /two@3")
	assert.Equal(t, "/pods/two", c.Status().Watchers[0].Key, "the key that is watched")
}

// Fields are checked only if GetAttrsFunc returns those of an empty object.
func TestUnknownFields(t *testing.T) {
	for name, attrs := range map[string]func(runtime.Object) (labels.Set, fields.Set, error){
		"an error": func(object runtime.Object) (labels.Set, fields.Set, error) {
			if object.(*example.Pod).Name == "" {
				return nil, nil, errors.New("no name")
			}
			return nil, fields.Set{"x": "1"}, nil
		},
		"a panic": func(object runtime.Object) (labels.Set, fields.Set, error) {
			return nil, fields.Set{"x": object.(*example.Pod).Labels["x"][:1]}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, newStore(poddata.Pod("a/one", "x=1")), func(config *cacher.Config) { config.GetAttrsFunc = attrs })
			l := informer.ListerWatcher(c)
			assert.Equal(t, "a/one@2", list(t, l, metav1.ListOptions{FieldSelector: "x=1"}))
			assert.Equal(t, "@2", list(t, l, metav1.ListOptions{FieldSelector: "y=1"}))
		})
	}
}

// A cache that is not ready, or stopped, answers 429.
func TestNotReady(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	store.Fail("watch", errors.New("storage is away"))
	store.Fail("list", errors.New("storage is away"))
	store.Fail("version", errors.New("storage is away"))
	c := open(t, store)
	l := informer.ListerWatcher(c)
	refused := func(when string) {
		for _, verb := range []string{"list", "watch"} {
			err := ask(t, l, verb, metav1.ListOptions{})
			assert.True(t, apierrors.IsTooManyRequests(err), "%s of a cache that is %s: %v", verb, when, err)
		}
	}
	refused("not ready")
	store.Fail("watch", nil)
	store.Fail("list", nil)
	store.Fail("version", nil)
	require.NoError(t, c.Wait(t.Context()))
	assert.Equal(t, "a/one@2", list(t, l, metav1.ListOptions{}))
	c.Stop()
	refused("stopped")
}
