// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	clientrest "k8s.io/client-go/rest"

	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

func create(t testing.TB, s *Store, name string, attrs ...string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	require.NoError(t, s.Create(t.Context(), "/pods/"+name, poddata.Pod(name, attrs...), out, 0))
	return out
}

func update(t testing.TB, s *Store, name, value string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	require.NoError(t, s.GuaranteedUpdate(t.Context(), "/pods/"+name, out, false, nil, func(o runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		o.(*example.Pod).Labels = map[string]string{"v": value}
		return o, nil, nil
	}, nil))
	return out
}

func namesOf(list *example.PodList) (names []string) {
	for _, pod := range list.Items {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	return names
}

// Objects are decoded into the caller's types, in every format.
func TestFormats(t *testing.T) {
	a := serve(t, true)
	created := create(t, a.store(t), "a/x", "v=1")
	for _, format := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		for kind, codecs := range map[string]struct {
			serializer   runtime.NegotiatedSerializer
			object, list runtime.Object
			onlyJSON     bool
		}{
			"internal":     {a.codecs, &example.Pod{}, &example.PodList{}, false},
			"external":     {a.codecs.WithoutConversion(), &examplev1.Pod{}, &examplev1.PodList{}, false},
			"unstructured": {nil, &unstructured.Unstructured{}, &unstructured.UnstructuredList{}, true},
		} {
			if codecs.onlyJSON && format != runtime.ContentTypeJSON {
				continue
			}
			t.Run(kind+" as "+format, func(t *testing.T) {
				s := a.store(t, func(c *Config) {
					c.REST.ContentType, c.REST.AcceptContentTypes = format, format
					c.Serializer = codecs.serializer
					c.NewFunc = func() runtime.Object { return codecs.object.DeepCopyObject() }
					c.NewListFunc = func() runtime.Object { return codecs.list.DeepCopyObject() }
				})
				object, list := codecs.object.DeepCopyObject(), codecs.list.DeepCopyObject()
				require.NoError(t, s.Get(t.Context(), "/pods/a/x", storage.GetOptions{}, object))
				require.NoError(t, s.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list))
				w, err := s.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: strconv.Itoa(int(rvOf(t, created) - 1)), Recursive: true, Predicate: storage.Everything})
				require.NoError(t, err)
				defer w.Stop()
				event := <-w.ResultChan()
				require.Equal(t, watch.Added, event.Type, "%v", event.Object)
				for _, o := range []runtime.Object{object, event.Object} {
					require.IsType(t, codecs.object, o)
					require.Equal(t, rvOf(t, created), rvOf(t, o))
				}
			})
		}
	}
}

func rvOf(t testing.TB, o runtime.Object) uint64 {
	t.Helper()
	rv, err := versioner.ObjectResourceVersion(o)
	require.NoError(t, err)
	return rv
}

// A list is paged by the upstream, which also selects, and its versions come through.
func TestLists(t *testing.T) {
	a := serve(t, false)
	s := a.store(t)
	for i := range 5 {
		create(t, s, fmt.Sprintf("a/%d", i), "odd="+strconv.Itoa(i%2))
	}
	last := create(t, s, "b/x")
	list := &example.PodList{}
	opts := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	opts.Predicate.Limit = 4
	require.NoError(t, s.GetList(t.Context(), "/pods", opts, list))
	require.Len(t, list.Items, 4)
	require.Equal(t, last.ResourceVersion, list.ResourceVersion)
	require.EqualValues(t, 2, *list.RemainingItemCount)
	opts.Predicate.Continue = list.Continue
	rest := &example.PodList{}
	require.NoError(t, s.GetList(t.Context(), "/pods", opts, rest))
	require.Equal(t, []string{"a/4", "b/x"}, namesOf(rest))

	for _, of := range []struct {
		key       string
		recursive bool
		label     labels.Selector
		field     fields.Selector
		want      []string
	}{
		{"/pods/a", true, labels.Everything(), fields.Everything(), []string{"a/0", "a/1", "a/2", "a/3", "a/4"}},
		{"/pods/", true, labels.SelectorFromSet(labels.Set{"odd": "1"}), fields.Everything(), []string{"a/1", "a/3"}},
		{"/pods/", true, labels.Everything(), fields.OneTermEqualSelector("metadata.namespace", "b"), []string{"b/x"}},
		{"/pods/", true, labels.Nothing(), fields.Everything(), nil},
		{"/pods/", true, labels.Everything(), fields.Nothing(), nil},
		{"/pods/a/2", false, labels.Everything(), fields.Everything(), []string{"a/2"}},
		{"/pods/a/none", false, labels.Everything(), fields.Everything(), nil},
	} {
		list := &example.PodList{}
		predicate := storage.SelectionPredicate{Label: of.label, Field: of.field}
		require.NoError(t, s.GetList(t.Context(), of.key, storage.ListOptions{Recursive: of.recursive, Predicate: predicate}, list), "%+v", of)
		require.Equal(t, of.want, namesOf(list), "%+v", of)
	}
	exact := &example.PodList{}
	require.NoError(t, s.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything,
		ResourceVersion: strconv.Itoa(int(rvOf(t, last) - 1)), ResourceVersionMatch: metav1.ResourceVersionMatchExact}, exact))
	require.Len(t, exact.Items, 5)
	stats, err := s.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 6, stats.ObjectCount)
	require.ErrorContains(t, s.GetList(t.Context(), "/pods/a/b/c", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list), "invalid key")
}

// A cache that has begun after changes serves a watch from before them, of the upstream's
// history: so informers of another relay resume. Pods have keys with a namespace.
func TestHistory(t *testing.T) {
	for _, ours := range []bool{true, false} {
		t.Run(fmt.Sprintf("ours=%v", ours), func(t *testing.T) {
			s := serve(t, ours).store(t)
			before := create(t, s, "a/x")
			var want []string
			for i := range 3 {
				want = append(want, update(t, s, "a/x", strconv.Itoa(i)).ResourceVersion)
			}
			empty := &example.PodList{}
			require.NoError(t, s.GetList(t.Context(), "/pods/-", storage.ListOptions{
				ResourceVersion: before.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Predicate: storage.Everything,
			}, empty))
			require.Empty(t, empty.Items)
			require.Equal(t, before.ResourceVersion, empty.ResourceVersion)
			w, err := cache(t, s).Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: before.ResourceVersion, Recursive: true, Predicate: storage.Everything})
			require.NoError(t, err)
			defer w.Stop()
			for _, version := range want {
				event := <-w.ResultChan()
				require.Equal(t, watch.Modified, event.Type, "%v", event.Object)
				require.Equal(t, version, strconv.Itoa(int(rvOf(t, event.Object))))
			}
		})
	}
}

// An upstream lists earlier versions than those from which it watches. A watch from too far
// back expires, and takes nothing from one that the history is there for.
func TestHistoryOfWatches(t *testing.T) {
	a := serve(t, true)
	s := a.store(t)
	before := create(t, s, "a/x")
	var versions []string
	for i := range 4 {
		versions = append(versions, update(t, s, "a/x", strconv.Itoa(i)).ResourceVersion)
	}
	a.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		at, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
		first, _ := strconv.Atoi(versions[1])
		if r.URL.Query().Get("watch") == "" || err != nil || at >= first {
			return false
		}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		w.WriteHeader(http.StatusGone)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`)
		return true
	})
	c := cache(t, s)
	for _, from := range []struct {
		version string
		want    watch.EventType
	}{{before.ResourceVersion, watch.Error}, {versions[1], watch.Modified}} {
		w, err := c.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: from.version, Recursive: true, Predicate: storage.Everything})
		require.NoError(t, err)
		defer w.Stop()
		event := <-w.ResultChan()
		require.Equal(t, from.want, event.Type, "%v", event.Object)
		if from.want == watch.Error {
			require.True(t, apierrors.IsResourceExpired(apierrors.FromObject(event.Object)), "%v", event.Object)
		} else {
			require.Equal(t, versions[2], strconv.Itoa(int(rvOf(t, event.Object))))
		}
	}
}

// Errors come through, but for those that package storage has.
func TestErrors(t *testing.T) {
	a := serve(t, false)
	s := a.store(t)
	create(t, s, "a/x")
	require.True(t, storage.IsNotFound(s.Get(t.Context(), "/pods/a/none", storage.GetOptions{}, &example.Pod{})))
	out := poddata.Pod("a/y")
	require.NoError(t, s.Get(t.Context(), "/pods/a/none", storage.GetOptions{IgnoreNotFound: true}, out))
	require.Equal(t, &example.Pod{}, out)
	require.True(t, storage.IsExist(s.Create(t.Context(), "/pods/a/x", poddata.Pod("a/x"), &example.Pod{}, 0)))
	require.ErrorContains(t, s.Create(t.Context(), "/pods/a/y", poddata.Pod("a/y"), &example.Pod{}, 5), "time to live")
	everything := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	everything.ResourceVersion = "1000000"
	require.True(t, storage.IsTooLargeResourceVersion(s.GetList(t.Context(), "/pods", everything, &example.PodList{})))

	a.intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"relay may not list pods","reason":"Forbidden","code":403}`))
		return true
	})
	err := s.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{})
	require.True(t, apierrors.IsForbidden(err))
	require.ErrorContains(t, err, "relay may not list pods")
	require.False(t, s.Missing())
	// A page without a Status ends nothing: discovery says what there is.
	page := func(except string) {
		a.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if except != "" && strings.HasSuffix(r.URL.Path, except) {
				return false
			}
			http.NotFound(w, r)
			return true
		})
	}
	for _, except := range []string{"", "/v1"} {
		page(except)
		_, err = s.GetCurrentResourceVersion(t.Context())
		require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
		require.True(t, apierrors.IsServiceUnavailable(s.Get(t.Context(), "/pods/a/x", storage.GetOptions{}, &example.Pod{})))
		require.False(t, s.Missing())
	}
	discovery := `{"kind":"APIResourceList","groupVersion":"example.apiserver.k8s.io/v1","resources":[{"name":"pods/status"}]}`
	a.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/v1") && discovery != "" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, discovery)
		} else if strings.HasSuffix(r.URL.Path, "/apis") {
			_, _ = io.WriteString(w, `{"kind":"APIGroupList","groups":[{"name":"g","versions":[{"groupVersion":"g/v1"}]}]}`)
		} else {
			http.NotFound(w, r)
		}
		return true
	})
	_, err = s.GetCurrentResourceVersion(t.Context())
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	require.True(t, s.Missing())
	s.missing.Store(false)
	discovery = "" // the group is gone with its last resource
	_, err = s.GetCurrentResourceVersion(t.Context())
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	require.True(t, s.Missing())
	require.False(t, storage.IsNotFound(s.Get(t.Context(), "/pods/a/x", storage.GetOptions{}, &example.Pod{})), "that there is no such resource says nothing of the object")
	a.intercept(nil)
	_, err = s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	require.False(t, s.Missing())

	away := a.store(t, func(c *Config) { c.REST = &clientrest.Config{Host: "https://127.0.0.1:1"} })
	_, err = away.GetCurrentResourceVersion(t.Context())
	require.True(t, apierrors.IsTimeout(err), "%v", err)
	require.ErrorContains(t, err, "connection refused")
	require.NotContains(t, err.Error(), "https://")
}

// Writes are the upstream's, with what the caller requires.
func TestWrites(t *testing.T) {
	a := serve(t, false)
	s := a.store(t)
	created := create(t, s, "a/x", "v=1")
	require.NotEmpty(t, created.UID)
	old := created.DeepCopy()
	updated := update(t, s, "a/x", "2")
	require.Greater(t, rvOf(t, updated), rvOf(t, created))

	// An old suggestion is no harm.
	set := func(value string) storage.UpdateFunc {
		return func(o runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			if o.(*example.Pod).Labels["v"] == "1" {
				o.(*example.Pod).Labels["v"] = "from the suggestion"
				return o, nil, nil
			}
			o.(*example.Pod).Labels["v"] = value
			return o, nil, nil
		}
	}
	out := &example.Pod{}
	require.NoError(t, s.GuaranteedUpdate(t.Context(), "/pods/a/x", out, false, nil, set("3"), old))
	require.Equal(t, "3", out.Labels["v"])
	// Nor is one that an update leaves as it is, which the live object is not.
	require.NoError(t, s.GuaranteedUpdate(t.Context(), "/pods/a/x", out, false, nil, func(o runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		o.(*example.Pod).Labels["v"] = "1"
		return o, nil, nil
	}, old.DeepCopy()))
	live := &example.Pod{}
	require.NoError(t, s.Get(t.Context(), "/pods/a/x", storage.GetOptions{}, live))
	require.Equal(t, "1", live.Labels["v"])
	require.Equal(t, live, out)
	out = update(t, s, "a/x", "3")
	// The same again writes nothing.
	same := &example.Pod{}
	require.NoError(t, s.GuaranteedUpdate(t.Context(), "/pods/a/x", same, false, nil, set("3"), nil))
	require.Equal(t, out, same)
	wrong := storage.NewUIDPreconditions("another")
	require.True(t, storage.IsInvalidObj(s.GuaranteedUpdate(t.Context(), "/pods/a/x", out, false, wrong, set("4"), nil)))
	require.True(t, storage.IsNotFound(s.GuaranteedUpdate(t.Context(), "/pods/a/y", out, false, nil, set("4"), nil)))
	require.NoError(t, s.GuaranteedUpdate(t.Context(), "/pods/a/y", out, true, nil, func(runtime.Object, storage.ResponseMeta) (runtime.Object, *uint64, error) {
		return poddata.Pod("a/y"), nil, nil
	}, nil))
	require.Equal(t, "y", out.Name)

	require.True(t, storage.IsInvalidObj(s.Delete(t.Context(), "/pods/a/x", out, wrong, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})))
	deleted := &example.Pod{}
	require.NoError(t, s.Delete(t.Context(), "/pods/a/x", deleted, storage.NewUIDPreconditions(string(created.UID)), storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
	require.Equal(t, "3", deleted.Labels["v"])
	require.True(t, storage.IsNotFound(s.Delete(t.Context(), "/pods/a/x", deleted, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})))
}

// An upstream may refuse a write by a conflict that has nothing to do with the version: of
// a namespace that is being deleted, for example. The caller gets it, and the upstream is
// not asked again and again.
func TestConflictsThatStay(t *testing.T) {
	a := serve(t, false)
	s := a.store(t)
	create(t, s, "a/x", "v=1")
	a.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		reason := metav1.StatusReasonConflict
		switch r.Method {
		case http.MethodGet:
			return false
		case http.MethodPost:
			reason = metav1.StatusReasonAlreadyExists
		}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "message": "not now", "code": 409}`, reason)
		return true
	})
	change := func(o runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		o.(*example.Pod).Labels = map[string]string{"v": "2"}
		return o, nil, nil
	}
	out := &example.Pod{}
	a.requests()
	err := s.Delete(within(t), "/pods/a/x", out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	err = s.GuaranteedUpdate(within(t), "/pods/a/x", out, false, nil, change, nil)
	require.True(t, apierrors.IsConflict(err), "%v", err)
	err = s.GuaranteedUpdate(within(t), "/pods/a/y", out, true, nil, func(runtime.Object, storage.ResponseMeta) (runtime.Object, *uint64, error) {
		return poddata.Pod("a/y"), nil, nil
	}, nil)
	require.True(t, storage.IsExist(err), "%v", err)
	require.Len(t, a.requests(), 12, "twice each, with a read before")
}

// An error names every invalid field.
func TestConfig(t *testing.T) {
	_, err := New(Config{})
	for _, field := range []string{"REST", "Resource", "ResourcePrefix", "NewFunc", "NewListFunc"} {
		require.ErrorContains(t, err, "upstream.Config."+field+" is ")
	}
	_, err = New(Config{
		REST: &clientrest.Config{Timeout: 1}, Resource: pods, ResourcePrefix: "/pods", NewFunc: poddata.New, NewListFunc: func() runtime.Object { return &example.ReplicaSet{} },
	})
	require.ErrorContains(t, err, "upstream.Config.REST.Timeout is 1ns: it would end watches, want 0")
	require.ErrorContains(t, err, "upstream.Config.NewListFunc is a function that returns a *example.ReplicaSet")
	s := &Store{config: Config{Resource: pods, ResourcePrefix: "/pods/"}}
	config := (&storagebackend.Config{}).ForResource(pods.GroupResource())
	raw, _, err := decoration.Open(s.RawStorage, decoration.Request{Config: config, ResourcePrefix: "/pods"})
	require.NoError(t, err)
	require.Same(t, s, raw)
	_, _, err = decoration.Open(s.RawStorage, decoration.Request{Config: config, ResourcePrefix: "/services"})
	require.ErrorContains(t, err, `the Store is for`)
}
