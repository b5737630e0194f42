// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"

	"github.com/kube-watchcache/watchcache/internal/decoration"
)

// fakeCache is as ready as its error says.
type fakeCache struct {
	storage.Interface
	err error
}

func (c *fakeCache) ReadinessCheck() error { return c.err }

// build makes the installation believe that it built the cache.
func build(t *testing.T, i *installation, c *fakeCache, err error) factory.DestroyFunc {
	t.Helper()
	decorate := i.observe(decoration.Decorator(func(decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
		return c, func() {}, err
	}))
	got, destroy, gotErr := decoration.Call(decorate, decoration.Request{Config: &storagebackend.ConfigForResource{GroupResource: gadgets}})
	require.Same(t, c, got)
	require.Equal(t, err, gotErr)
	return destroy
}

func TestReadinessOfInstallation(t *testing.T) {
	i := &installation{}
	require.NoError(t, i.check(nil), "nothing to wait for")
	first, second := &fakeCache{err: storage.ErrStorageNotReady}, &fakeCache{err: errors.New("still listing")}
	build(t, i, first, nil)
	build(t, i, second, nil)
	build(t, i, &fakeCache{err: errors.New("never built")}, errors.New("no"))

	err := i.check(nil)
	require.ErrorContains(t, err, "gadgets.example.com")
	require.ErrorContains(t, err, "still listing")
	require.NotContains(t, err.Error(), "never built")
	first.err = nil
	require.Error(t, i.check(nil))
	second.err = nil
	require.NoError(t, i.check(nil))
	first.err = storage.ErrStorageNotReady
	require.NoError(t, i.check(nil), "once ready, a server stays in service")
}

func TestDestroyedCacheIsNotWaitedFor(t *testing.T) {
	i := &installation{}
	destroy := build(t, i, &fakeCache{err: storage.ErrStorageNotReady}, nil)
	require.Error(t, i.check(nil))
	destroy()
	destroy()
	require.NoError(t, i.check(nil))
	build(t, i, &fakeCache{err: storage.ErrStorageNotReady}, nil)
	require.Error(t, i.check(nil), "no cache was ready yet")
}

// newServer makes a generic server of a Config that install has changed.
func newServer(t testing.TB, install func(*genericapiserver.Config)) *genericapiserver.GenericAPIServer {
	t.Helper()
	return newServerBefore(t, genericapiserver.NewEmptyDelegate(), install)
}

// newServerBefore makes a server that delegates the requests that it has no
// handler for.
func newServerBefore(t testing.TB, delegate genericapiserver.DelegationTarget, install func(*genericapiserver.Config)) *genericapiserver.GenericAPIServer {
	t.Helper()
	config := genericapiserver.NewConfig(serializer.NewCodecFactory(runtime.NewScheme()))
	config.ExternalAddress = "127.0.0.1:443"
	config.LoopbackClientConfig = &rest.Config{}
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.SkipOpenAPIInstallation = true
	install(config)
	server, err := config.Complete(nil).New("test", delegate)
	require.NoError(t, err)
	t.Cleanup(server.Destroy)
	return server
}

func get(server *genericapiserver.GenericAPIServer, path string) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	server.Handler.NonGoRestfulMux.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
	return recorder
}

func TestAddReadinessHook(t *testing.T) {
	server := newServer(t, func(config *genericapiserver.Config) {
		config.RESTOptionsGetter = &fakeGetter{decorator: generic.UndecoratedStorage}
		require.NoError(t, Install(config))
	})
	installed := installationOf(server)
	require.NoError(t, AddReadinessHook(server))
	require.ErrorContains(t, AddReadinessHook(server), "called twice")
	// A cache may come after the hook.
	require.NoError(t, Readiness(server), "there is no cache to wait for")
	gadget := &fakeCache{err: fmt.Errorf("%w: etcd is away", storage.ErrStorageNotReady)}
	build(t, installed, gadget, nil)
	server.PrepareRun()
	// The error names the cache and the reason.
	require.ErrorContains(t, Readiness(server), "gadgets")
	require.ErrorContains(t, Readiness(server), "etcd is away")

	require.Contains(t, server.PreShutdownHooks(), "watchcache-bookmarks-0")
	require.NoError(t, server.RunPreShutdownHooks())

	// Outside a running server other checks fail, too: ask for ours alone.
	require.Equal(t, http.StatusInternalServerError, get(server, "/readyz/watchcache").Code)
	require.Contains(t, get(server, "/readyz?verbose").Body.String(), "[-]watchcache failed")
	require.NotContains(t, get(server, "/livez?verbose").Body.String(), "watchcache")
	require.Contains(t, get(server, "/healthz?verbose").Body.String(), "[+]watchcache-installed ok")
	gadget.err = nil
	require.Equal(t, http.StatusOK, get(server, "/readyz/watchcache").Code)
	require.Contains(t, get(server, "/readyz?verbose").Body.String(), "[+]watchcache ok")
	require.NoError(t, Readiness(server))
}

func TestAddReadinessHookRefusesBadInput(t *testing.T) {
	require.ErrorContains(t, AddReadinessHook(nil), "server is nil")
	without := newServer(t, func(*genericapiserver.Config) {})
	require.ErrorContains(t, AddReadinessHook(without), "not installed")
	require.ErrorContains(t, Readiness(nil), "server is nil")
	require.NoError(t, Readiness(without))

	late := newServer(t, func(config *genericapiserver.Config) {
		config.RESTOptionsGetter = &fakeGetter{}
		require.NoError(t, Install(config))
	})
	late.PrepareRun()
	require.ErrorContains(t, AddReadinessHook(late), "readyz")
}

// TestDelegation: the first server of a chain answers /readyz for all of them.
func TestDelegation(t *testing.T) {
	inner := newServer(t, func(config *genericapiserver.Config) {
		config.RESTOptionsGetter = &fakeGetter{}
		require.NoError(t, Install(config))
	})
	installed := installationOf(inner)
	outer := newServerBefore(t, inner, func(*genericapiserver.Config) {})
	require.NoError(t, AddReadinessHook(inner))
	require.NoError(t, AddReadinessHook(outer))
	gadget := &fakeCache{err: storage.ErrStorageNotReady}
	build(t, installed, gadget, nil)
	outer.PrepareRun()
	require.Equal(t, http.StatusInternalServerError, get(outer, "/readyz/watchcache").Code)
	gadget.err = nil
	require.Equal(t, http.StatusOK, get(outer, "/readyz/watchcache").Code)
}

// A watch that begins while the server shuts down would end within a second and without an
// event, after which client-go lists again. client-go repeats a watch that got 429.
func TestWatchesWhileTheServerShutsDown(t *testing.T) {
	server := newServer(t, func(config *genericapiserver.Config) {
		config.RESTOptionsGetter = &fakeGetter{decorator: generic.UndecoratedStorage}
		require.NoError(t, Install(config))
	})
	i := installationOf(server)
	require.NoError(t, AddReadinessHook(server))
	served := 0
	handler := i.withPage(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }), genericapiserver.NewConfig(serializer.NewCodecFactory(runtime.NewScheme())))
	ask := func(verb string) *httptest.ResponseRecorder {
		recorder, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/apis/example.com/v1/gadgets", nil)
		handler.ServeHTTP(recorder, r.WithContext(request.WithRequestInfo(r.Context(), &request.RequestInfo{Verb: verb})))
		return recorder
	}
	server.ShutdownDelayDuration = time.Minute
	require.NoError(t, server.RunPreShutdownHooks())
	require.Equal(t, http.StatusOK, ask("watch").Code, "for its ShutdownDelayDuration a server goes on serving")
	server.ShutdownDelayDuration = 0
	require.NoError(t, server.RunPreShutdownHooks())
	refused := ask("watch")
	require.Equal(t, http.StatusTooManyRequests, refused.Code)
	require.Equal(t, "1", refused.Header().Get("Retry-After"))
	require.Contains(t, refused.Body.String(), "the server is shutting down")
	require.Equal(t, 1, served)
	require.Equal(t, http.StatusOK, ask("list").Code)
	require.Equal(t, 2, served)
}
