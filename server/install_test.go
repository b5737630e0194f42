// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
)

var gadgets = schema.GroupResource{Group: "example.com", Resource: "gadgets"}

// fakeGetter answers with one decorator and counts its calls.
type fakeGetter struct {
	decorator generic.StorageDecorator
	err       error
	asked     []runtime.Object
}

func (g *fakeGetter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	g.asked = append(g.asked, example)
	return generic.RESTOptions{Decorator: g.decorator, ResourcePrefix: resource.Group + "/" + resource.Resource}, g.err
}

func TestInstallRefusesBadInput(t *testing.T) {
	require.ErrorContains(t, Install(nil), "config is nil")
	config := &genericapiserver.Config{}
	require.ErrorContains(t, Install(config), "config.RESTOptionsGetter is nil")
	require.Empty(t, config.HealthzChecks)
}

// REGRESSIONS 112: Install returns all problems of its options at once, and
// leaves the Config as it was.
func TestInstallRefusesOptions(t *testing.T) {
	inner := &fakeGetter{}
	config := &genericapiserver.Config{RESTOptionsGetter: inner}
	err := Install(config, cacher.Configure(func(c *cacher.Config) { c.WindowBytes = -1 }), nil, cacher.Configure(func(c *cacher.Config) { c.WatchBuffer = 1 << 40 }), cacher.WithRawStorage(nil),
		cacher.Except())
	for _, word := range []string{"server.Install", "WindowBytes is -1", "Option 2 of 5 is nil", "WatchBuffer is 1099511627776",
		"cacher.WithRawStorage is given nil", "cacher.Except names no resource"} {
		require.ErrorContains(t, err, word)
	}
	require.Same(t, inner, config.RESTOptionsGetter)
	require.Empty(t, config.HealthzChecks)
}

func TestInstallTwice(t *testing.T) {
	config := &genericapiserver.Config{RESTOptionsGetter: &fakeGetter{}}
	require.NoError(t, Install(config))
	once := config.RESTOptionsGetter
	require.ErrorIs(t, Install(config), ErrInstalled)
	require.Same(t, once, config.RESTOptionsGetter)
	require.Len(t, config.HealthzChecks, 1)
}

// TestInstallReplacesDecorator: of the inner getter's options only the
// decorator is replaced, and not even that if the resource is excluded from
// caching.
func TestInstallReplacesDecorator(t *testing.T) {
	opened := errors.New("the caller's raw storage was asked")
	raw := func(decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
		return nil, nil, opened
	}
	for name, test := range map[string]struct {
		inner  generic.StorageDecorator
		cached bool
	}{
		"upstream's cacher": {genericregistry.StorageWithCacher(), true},
		"no cache":          {generic.UndecoratedStorage, false},
		"none at all":       {nil, true},
		"of the server's own": {decoration.Decorator(func(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
			return decoration.Call(generic.UndecoratedStorage, r)
		}), true},
	} {
		t.Run(name, func(t *testing.T) {
			inner := &fakeGetter{decorator: test.inner}
			config := &genericapiserver.Config{RESTOptionsGetter: inner}
			require.NoError(t, Install(config, cacher.WithRawStorage(decoration.AsRaw(raw))))
			options, err := config.RESTOptionsGetter.GetRESTOptions(gadgets, nil)
			require.NoError(t, err)
			require.Equal(t, "example.com/gadgets", options.ResourcePrefix)
			require.Equal(t, []runtime.Object{nil}, inner.asked)
			require.Equal(t, !test.cached, isUndecorated(options.Decorator))
			if test.cached {
				_, _, err := decoration.Call(options.Decorator, decoration.Request{Config: &storagebackend.ConfigForResource{}, ResourcePrefix: ""})
				require.ErrorIs(t, err, opened, "the caller's options come last")
			}
		})
	}
}

// TestInstallHonoursFlags asks the getter that servers really have.
func TestInstallHonoursFlags(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*genericoptions.EtcdOptions)
		cached bool
	}{
		"default":                              {func(*genericoptions.EtcdOptions) {}, true},
		"--watch-cache=false":                  {func(o *genericoptions.EtcdOptions) { o.EnableWatchCache = false }, false},
		"--watch-cache-sizes of this resource": {func(o *genericoptions.EtcdOptions) { o.WatchCacheSizes = []string{"gadgets.example.com#0"} }, false},
		"--watch-cache-sizes of another":       {func(o *genericoptions.EtcdOptions) { o.WatchCacheSizes = []string{"widgets.example.com#0"} }, true},
		"--watch-cache-sizes with a size":      {func(o *genericoptions.EtcdOptions) { o.WatchCacheSizes = []string{"gadgets.example.com#7"} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			etcd := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))
			test.change(etcd)
			config := &genericapiserver.Config{RESTOptionsGetter: etcd.CreateRESTOptionsGetter(
				&genericoptions.SimpleStorageFactory{StorageConfig: etcd.StorageConfig}, nil)}
			require.NoError(t, Install(config))
			options, err := config.RESTOptionsGetter.GetRESTOptions(gadgets, nil)
			require.NoError(t, err)
			require.Equal(t, test.cached, !isUndecorated(options.Decorator))
			require.Equal(t, gadgets, options.StorageConfig.GroupResource)
		})
	}
}

// TestInstallSelects: resources that the options leave out keep the decorator that
// they had.
func TestInstallSelects(t *testing.T) {
	widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	for name, test := range map[string]struct {
		option cacher.Option
		cached []schema.GroupResource
	}{
		"Only":            {cacher.Only(gadgets), []schema.GroupResource{gadgets}},
		"Only, of both":   {cacher.Only(gadgets, widgets), []schema.GroupResource{gadgets, widgets}},
		"Except":          {cacher.Except(gadgets), []schema.GroupResource{widgets}},
		"Except, of both": {cacher.Except(gadgets, widgets), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inner := genericregistry.StorageWithCacher()
			config := &genericapiserver.Config{RESTOptionsGetter: &fakeGetter{decorator: inner}}
			require.NoError(t, Install(config, test.option))
			for _, resource := range []schema.GroupResource{gadgets, widgets} {
				options, err := config.RESTOptionsGetter.GetRESTOptions(resource, nil)
				require.NoError(t, err)
				ours := reflect.ValueOf(options.Decorator).Pointer() != reflect.ValueOf(inner).Pointer()
				require.Equal(t, slices.Contains(test.cached, resource), ours, "%s", resource)
			}
		})
	}
}
