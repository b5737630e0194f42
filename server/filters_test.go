// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/warning"

	"github.com/kube-watchcache/watchcache/cacher"
)

// mayRead is the rule of the filters below: objects named hidden are for the admin.
func mayRead(ctx context.Context, object runtime.Object) bool {
	m, err := meta.Accessor(object)
	return err == nil && (userOf(ctx) == "admin" || !strings.HasPrefix(m.GetName(), "hidden"))
}

// filtered is a watch that passes on the events that mayRead allows.
func filtered(ctx context.Context, w watch.Interface) watch.Interface {
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		return e, e.Type == watch.Bookmark || mayRead(ctx, e.Object)
	})
}

// podsPerUser is a storage of pods that shows each user what mayRead allows.
type podsPerUser struct{ *genericregistry.Store }

func (s podsPerUser) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	list, err := s.Store.List(ctx, options)
	if err != nil {
		return nil, err
	}
	pods := list.(*example.PodList)
	allowed := pods.Items[:0]
	for i := range pods.Items {
		if mayRead(ctx, &pods.Items[i]) {
			allowed = append(allowed, pods.Items[i])
		}
	}
	pods.Items = allowed
	return pods, nil
}

func (s podsPerUser) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	w, err := s.Store.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	return filtered(ctx, w), nil
}

// askAs sends a LIST for a user.
func askAs(t *testing.T, served *httptest.Server, user, path, accept string, compressed bool) string {
	t.Helper()
	header := http.Header{"Accept": {accept}, "Accept-Encoding": {"identity"}, userHeader: {user}}
	if compressed {
		header.Set("Accept-Encoding", "gzip")
	}
	got := sendRaw(t, served, http.MethodGet, path, header, true)
	require.Equal(t, http.StatusOK, got.status, "%s", got.body)
	if got.header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(bytes.NewReader(got.body))
		require.NoError(t, err)
		got.body, err = io.ReadAll(unzipped)
		require.NoError(t, err)
	}
	return string(got.body)
}

// expectFiltered lists for users in turn, and sees that each gets the names that are
// for them.
func expectFiltered(t *testing.T, served *httptest.Server, path string, accepts []string) {
	t.Helper()
	for round := range 4 {
		for _, accept := range accepts {
			for _, compressed := range []bool{false, true} {
				all := askAs(t, served, "admin", path, accept, compressed)
				require.Contains(t, all, "hidden7", "%s, round %d", accept, round)
				some := askAs(t, served, "bob", path, accept, compressed)
				require.Contains(t, some, "open7", "%s, round %d", accept, round)
				require.NotContains(t, some, "hidden", "%s, round %d", accept, round)
			}
		}
	}
}

// REGRESSIONS 123: a storage of Go types that filters by user is never bypassed, in
// any way in which kept bytes come into an answer.
func TestFilterPerUserOfTypedObjects(t *testing.T) {
	r := pods(t)
	open := r.open
	r.open = func(t testing.TB, config *genericapiserver.Config) (map[string]rest.Storage, *genericregistry.Store) {
		storages, store := open(t, config)
		storages["pods"] = podsPerUser{store}
		return storages, store
	}
	s := serveTwins(t, r, auditinternal.LevelMetadata)
	for i := range 30 {
		s.put(t, testPod("ns1", fmt.Sprint("hidden", i), 0))
		s.put(t, testPod("ns1", fmt.Sprint("open", i), 0))
	}
	path := "/apis/" + example.GroupName + "/v1/pods?resourceVersion=0"
	ask(t, s.with, strings.TrimSuffix(path, "?resourceVersion=0"), asJSON, false)
	expectFiltered(t, s.with, path, []string{asJSON, asProtobuf, asPartial, asPartialProtobuf, asTable})
	expectFilteredWatches(t, s.with, withState, []string{asJSON, asProtobuf, asPartialOne, asTable})
}

// asPartialOne is how a watch asks for metadata.
const asPartialOne = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// expectFilteredWatches watches with initial events for users in turn, and sees that each
// gets the names that are for them.
func expectFilteredWatches(t *testing.T, served *httptest.Server, path string, accepts []string) {
	t.Helper()
	for _, accept := range accepts {
		for range 3 {
			for _, encodings := range []string{"gzip", "identity"} {
				for _, user := range []string{"admin", "bob"} {
					header := http.Header{"Accept": {accept}, "Accept-Encoding": {encodings}, userHeader: {user}}
					watch := openStream(t, served, path, header, true, true)
					events := strings.Join(watch.state(), "")
					watch.leave()
					require.Contains(t, events, "open7", accept)
					require.Equal(t, user == "admin", strings.Contains(events, "hidden"), "%s, %s, %s", accept, encodings, user)
				}
			}
		}
	}
}

// pandasOfItsOwn is a server's own resource without a Go type, in a handler that it
// has made of k8s.io/apiserver's, and that filters by user.
type pandasOfItsOwn struct {
	customResource
	storage.Interface
	// warns: each list has a warning. odd: lists look otherwise than the cache has
	// filled them.
	warns, odd bool
}

func (p *pandasOfItsOwn) NewList() runtime.Object {
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(p.kind().GroupVersion().WithKind("PandaList"))
	return l
}

func (p *pandasOfItsOwn) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return rest.NewDefaultTableConvertor(bears).ConvertToTable(ctx, object, options)
}

// predicate reads the options of a request as a registry does.
func predicate(o *internalversion.ListOptions) storage.ListOptions {
	all := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), GetAttrs: storage.DefaultNamespaceScopedAttr}
	all.Limit, all.Continue, all.AllowWatchBookmarks = o.Limit, o.Continue, o.AllowWatchBookmarks
	return storage.ListOptions{ResourceVersion: o.ResourceVersion, ResourceVersionMatch: o.ResourceVersionMatch, SendInitialEvents: o.SendInitialEvents, Predicate: all, Recursive: true}
}

func (p *pandasOfItsOwn) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if p.warns {
		warning.AddWarning(ctx, "", "these are pandas")
	}
	list := p.NewList().(*unstructured.UnstructuredList)
	if err := p.GetList(ctx, keyOfPanda(""), predicate(options), list); err != nil {
		return nil, err
	}
	allowed := list.Items[:0]
	for i := range list.Items {
		if mayRead(ctx, &list.Items[i]) {
			allowed = append(allowed, list.Items[i])
		}
	}
	list.Items = allowed
	if p.odd {
		list.SetSelfLink("/odd")
	}
	return list, nil
}

func (p *pandasOfItsOwn) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	w, err := p.Interface.Watch(ctx, keyOfPanda(""), predicate(options))
	if err != nil {
		return nil, err
	}
	return filtered(ctx, w), nil
}

// servePandas serves pandas of a server's own, whose storage is opened through the
// getter of Install or that of CustomResources, in a server that calls both.
func servePandas(t *testing.T, throughCustomResources bool) (*httptest.Server, *pandasOfItsOwn) {
	t.Helper()
	etcd := startEtcdFor(t)
	etcd.Codec = unstructured.UnstructuredJSONScheme
	p := &pandasOfItsOwn{customResource: customResource{version: "v1", storageVersion: "v1", known: []string{"size"}}}
	var getter generic.RESTOptionsGetter
	server := newServer(t, func(config *genericapiserver.Config) {
		config.BuildHandlerChainFunc = chainWithUsers
		getter = getterFor(etcd)
		config.RESTOptionsGetter = getter
		require.NoError(t, Install(config))
		custom, err := CustomResources(config, getter)
		require.NoError(t, err)
		if getter = config.RESTOptionsGetter; throughCustomResources {
			getter = custom
		}
	})
	p.Interface, _ = p.open(t, getter)
	require.NoError(t, p.Interface.(*cacher.Cacher).Wait(t.Context()))
	gv := p.kind().GroupVersion()
	scope := &handlers.RequestScope{
		Namer:      handlers.ContextBasedNaming{Namer: meta.NewAccessor(), ClusterScoped: true},
		Serializer: pandaSerializer{p.customResource}, ParameterCodec: internalversionscheme.ParameterCodec,
		Creater: p.customResource, Convertor: pandaConvertor{p.customResource}, Typer: p.customResource,
		TableConvertor: p, Resource: gv.WithResource(bears.Resource), Kind: p.kind(),
		MetaGroupVersion: metav1.SchemeGroupVersion, HubGroupVersion: gv,
	}
	server.Handler.NonGoRestfulMux.HandlePrefix("/apis/"+bears.Group+"/", handlers.ListResource(p, p, scope, false, time.Minute))
	served := httptest.NewUnstartedServer(server.Handler)
	served.EnableHTTP2 = true
	served.StartTLS()
	t.Cleanup(served.Close)
	for i := range 30 {
		for _, name := range []string{fmt.Sprint("hidden", i), fmt.Sprint("open", i)} {
			require.NoError(t, p.Create(t.Context(), keyOfPanda(name), p.panda(name, map[string]any{"size": int64(i), "text": strings.Repeat("x", 4000)}), nil, 0))
		}
	}
	return served, p
}

const pandasPath = "/apis/awesome.bears.com/v1/pandas"

// REGRESSIONS 123: a server's own resource without a Go type that filters by user is
// left alone, although the server answers custom resources from kept bytes.
func TestFilterPerUserOfUnstructuredObjects(t *testing.T) {
	for _, throughCustomResources := range []bool{false, true} {
		t.Run(fmt.Sprintf("store of CustomResources: %v", throughCustomResources), func(t *testing.T) {
			served, p := servePandas(t, throughCustomResources)
			askAs(t, served, "admin", pandasPath, asJSON, false) // consistent: the cache has all of them now
			expectFiltered(t, served, pandasPath+"?resourceVersion=0", []string{asJSON, asPartial, asTable})
			if !throughCustomResources {
				require.Zero(t, p.Interface.(*cacher.Cacher).Status().EncodingBytes, "nothing is kept")
			}
			expectFilteredWatches(t, served, pandasPath+strings.TrimPrefix(withState, podsPath), []string{asJSON, asPartialOne, asTable})
		})
	}
}

// REGRESSIONS 126: the second attempt at a list keeps the warnings of the first.
func TestWarningsOfAListThatIsMadeTwice(t *testing.T) {
	served, p := servePandas(t, true)
	header := func() http.Header {
		return http.Header{"Accept": {asJSON}, "Accept-Encoding": {"identity"}, userHeader: {"admin"}}
	}
	for range 3 {
		require.Empty(t, sendRaw(t, served, http.MethodGet, pandasPath, header(), true).header["Warning"])
	}
	require.Positive(t, p.Interface.(*cacher.Cacher).Status().EncodingBytes, "the list is answered from kept bytes")
	p.warns, p.odd = true, true
	got := sendRaw(t, served, http.MethodGet, pandasPath, header(), true)
	require.Equal(t, []string{`299 - "these are pandas"`}, got.header["Warning"])
	require.Contains(t, string(got.body), "hidden7")
	require.Contains(t, string(got.body), "/odd")
}

// pandaConvertor converts for the handlers.
type pandaConvertor struct{ customResource }

func (c pandaConvertor) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	if list, ok := in.(*unstructured.UnstructuredList); ok {
		return list, nil
	}
	return c.customResource.ConvertToVersion(in, gv)
}
