// SPDX-License-Identifier: Apache-2.0

//go:build !k8s38

package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// decorate is a registry's Decorator. Like most, it looks at the Go type, and
// leaves objects of other types alone.
func decorate(object runtime.Object) {
	switch o := object.(type) {
	case *example.Pod:
		o.Spec.Hostname = "decorated"
	case *example.PodList:
		for i := range o.Items {
			o.Items[i].Spec.Hostname = "decorated"
		}
	}
}

// REGRESSIONS 107: a registry's Decorator is called for every object that is
// read, initial events included, as on the cacher that k8s.io/apiserver ships.
func TestStoreDecorator(t *testing.T) {
	config := &genericapiserver.Config{RESTOptionsGetter: getterFor(startEtcd(t))}
	require.NoError(t, Install(config))
	store := registryOf(t, config.RESTOptionsGetter)
	store.Decorator = decorate
	ctx := request.WithNamespace(request.NewDefaultContext(), "ns")
	create := func(name string) {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}}
		_, err := store.Create(ctx, pod, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		require.NoError(t, err)
	}
	create("a")

	got, err := store.Get(ctx, "a", &metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "decorated", got.(*example.Pod).Spec.Hostname)
	list, err := store.List(ctx, &internalversion.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, "decorated", list.(*example.PodList).Items[0].Spec.Hostname)

	yes := true
	for name, o := range map[string]*internalversion.ListOptions{
		"state":  {ResourceVersion: "0"},
		"stream": {SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true},
	} {
		w, err := store.Watch(ctx, o)
		require.NoError(t, err)
		defer w.Stop()
		event := <-w.ResultChan()
		require.Equal(t, watch.Added, event.Type, name)
		require.IsType(t, &example.Pod{}, event.Object, name)
		require.Equal(t, "decorated", event.Object.(*example.Pod).Spec.Hostname, name)
		if name == "stream" {
			require.Equal(t, watch.Bookmark, (<-w.ResultChan()).Type)
		}
	}
}

// Clients of a server with InstallAPIGroup read what a registry's Decorator has made of
// lists and of initial events, as those of a server without it, and its changes stay its
// own: once the registry has no Decorator, the cache's own objects come.
func TestServedDecorator(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	for _, decorates := range []bool{false, true, false} {
		s.store.Decorator = nil
		if decorates {
			s.store.Decorator = decorate
		}
		for _, accept := range []string{asJSON, asProtobuf} {
			for range 3 { // lists are kept from the second one on
				got := s.expectSame(t, podsPath, accept, false)
				require.Equal(t, decorates, strings.Contains(string(got.body), "decorated"))
			}
			for _, encodings := range []string{"identity", "gzip"} {
				header := http.Header{"Accept": {accept}, "Accept-Encoding": {encodings}}
				got := openStream(t, s.with, withState, header, true, true).state()
				want := openStream(t, s.without, withState, header, true, true).state()
				require.Equal(t, want, got, "%s, %s, decorated: %v", accept, encodings, decorates)
				require.Equal(t, decorates, strings.Contains(got[0], "decorated"))
			}
		}
	}
}
