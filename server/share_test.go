// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
)

func TestShareRefuses(t *testing.T) {
	bare := &genericapiserver.Config{RESTOptionsGetter: &fakeGetter{}}
	installed := &genericapiserver.Config{RESTOptionsGetter: &fakeGetter{}}
	require.NoError(t, Install(installed))
	require.EqualError(t, Share(nil, bare), "server.Share: installed is nil")
	require.EqualError(t, Share(installed, nil), "server.Share: config is nil")
	require.ErrorContains(t, Share(installed, &genericapiserver.Config{}), "config.RESTOptionsGetter is nil")
	require.ErrorContains(t, Share(bare, &genericapiserver.Config{RESTOptionsGetter: &fakeGetter{}}), "server.Share: the first Config: the watch cache is not installed")
	require.ErrorIs(t, Share(installed, installed), ErrInstalled)
	require.IsType(t, &fakeGetter{}, bare.RESTOptionsGetter)
	require.Empty(t, bare.HealthzChecks)
}

// The Configs of a chain have one installation, whose raw storage and selection are
// those of Install, whether they were copied before Install or after it.
func TestShare(t *testing.T) {
	opened := errors.New("the raw storage of Install was asked")
	raw := func(decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
		return nil, nil, opened
	}
	front := genericapiserver.Config{}
	withEtcdOptions(&front)
	before := front
	require.NoError(t, Install(&front, cacher.WithRawStorage(decoration.AsRaw(raw)), cacher.Only(gadgets)))
	after := front
	installed := front.RESTOptionsGetter.(*getter).installed
	for name, config := range map[string]*genericapiserver.Config{"copied before": &before, "copied after": &after} {
		t.Run(name, func(t *testing.T) {
			own := &fakeGetter{decorator: nil}
			config.RESTOptionsGetter = own
			require.NoError(t, Share(&front, config))
			require.Same(t, installed, installationOf(newServer(t, func(c *genericapiserver.Config) { c.HealthzChecks = config.HealthzChecks })))
			options, err := config.RESTOptionsGetter.GetRESTOptions(gadgets, nil)
			require.NoError(t, err)
			require.Len(t, own.asked, 1, "the Config's own getter says where a resource is stored")
			_, _, err = decoration.Call(options.Decorator, decoration.Request{Config: &storagebackend.ConfigForResource{}, ResourcePrefix: ""})
			require.ErrorIs(t, err, opened)
			other := gadgets
			other.Resource = "others"
			options, err = config.RESTOptionsGetter.GetRESTOptions(other, nil)
			require.NoError(t, err)
			require.Nil(t, options.Decorator, "a resource that Install leaves out keeps its decorator")

			asking := 0
			for _, check := range config.ReadyzChecks {
				if c, ok := check.(*etcdCheck); ok {
					asking++
					require.Same(t, installed.pool, c.pool)
					_, twice := c.GroupedHealthChecker.(*etcdCheck)
					require.False(t, twice, "a check is replaced once")
				}
			}
			require.Positive(t, asking)
			require.Same(t, config.RESTOptionsGetter.(*getter).installed, installed)
			_, err = CustomResources(config, &fakeGetter{decorator: generic.UndecoratedStorage})
			require.NoError(t, err, "a Config that shares the caches is one that has them")
		})
	}
}
