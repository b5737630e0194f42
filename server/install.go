// SPDX-License-Identifier: Apache-2.0

// Package server switches a k8s.io/apiserver server over to this module's watch
// cache:
//
//	if err := options.ApplyTo(config); err != nil { ... } // RecommendedOptions, say
//	if err := server.Install(&config.Config); err != nil { ... }
//	...
//	generic, err := config.Complete().New("my-apiserver", genericapiserver.NewEmptyDelegate())
//	...
//	if err := server.AddReadinessHook(generic); err != nil { ... }
//
// Without the one line, the server is back on the cacher that it had.
//
// What Install brings with it:
//   - One etcd client per set of etcd servers for all caches, and one cache for all
//     served versions of a resource, however often its storage is constructed.
//   - The flags --watch-cache=false and --watch-cache-sizes=resource.group#0 keep
//     their meaning: such resources are served straight from etcd.
//   - The metrics of package metrics in the registry that /metrics shows.
//   - Every option of package cacher. cacher.Only and cacher.Except adopt resource by
//     resource; cacher.WithLazyStart and cacher.WithIdleTimeout are for servers with
//     many resources that are rarely used; cacher.WithRawStorage is for storage that
//     is not etcd's.
package server

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/metrics"
)

// ErrInstalled is what a second Install on one Config returns: which of the two
// lists of options should hold would be a guess.
var ErrInstalled = errors.New("the watch cache is already installed on this Config")

// Install makes every resource whose storage is built from config.RESTOptionsGetter
// use a cacher.Cacher with the given options, except those that the server was told
// not to cache, and those that cacher.Only or cacher.Except leave as they were, with
// the cache that k8s.io/apiserver ships. Call it once, after what sets the getter (EtcdOptions.ApplyTo,
// RecommendedOptions.ApplyTo) and before config is copied or completed. An error
// leaves config as it was.
//
// The caches read and write through etcd clients that Install's own pool opens on
// first use and closes with the last resource, and count in the registry that a
// server's /metrics shows; cacher.WithRawStorage and cacher.WithMetrics among the
// options replace that.
func Install(config *genericapiserver.Config, options ...cacher.Option) error {
	if config == nil {
		return errors.New("server.Install: config is nil")
	}
	if config.RESTOptionsGetter == nil {
		return errors.New("server.Install: config.RESTOptionsGetter is nil: call it after EtcdOptions.ApplyTo or RecommendedOptions.ApplyTo")
	}
	if _, ok := config.RESTOptionsGetter.(*getter); ok {
		return ErrInstalled
	}
	selection, err := cacher.SelectionOf(options...)
	if err != nil {
		return fmt.Errorf("server.Install: %w", err)
	}
	collectors, err := metrics.New(legacyregistry.Registerer())
	if err != nil {
		return fmt.Errorf("server.Install: %w", err)
	}
	pool := newPool()
	options = slices.Concat([]cacher.Option{cacher.WithRawStorage(pool.RawStorage), cacher.WithMetrics(collectors)}, options)
	installed := &installation{selection: selection}
	config.RESTOptionsGetter = &getter{
		inner:     config.RESTOptionsGetter,
		decorator: installed.observe(cacher.Decorator(options...)),
		installed: installed,
	}
	config.AddHealthzChecks(marker{installed})
	return nil
}

// getter answers as inner does, with the decorator of the watch cache.
type getter struct {
	inner     generic.RESTOptionsGetter
	decorator generic.StorageDecorator
	installed *installation
}

// GetRESTOptions opens nothing: servers also call it, without an example, to
// identify a resource.
func (g *getter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.inner.GetRESTOptions(resource, example)
	g.installed.ask(resource)
	if err == nil && g.installed.selection.Includes(resource) && !isUndecorated(options.Decorator) {
		options.Decorator = g.decorator
	}
	return options, err
}

// isUndecorated reports whether the decorator is generic.UndecoratedStorage, which
// is how EtcdOptions' getter says that a resource is not to be cached. Go compares
// no functions; their entry points will do for one that closes over nothing.
func isUndecorated(decorator generic.StorageDecorator) bool {
	return reflect.ValueOf(decorator).Pointer() == reflect.ValueOf(generic.UndecoratedStorage).Pointer()
}
