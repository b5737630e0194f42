// SPDX-License-Identifier: Apache-2.0

// Package server makes a k8s.io/apiserver server use this module's watch cache:
//
//	import watchcache "github.com/kube-watchcache/watchcache/server"
//	...
//	if err := options.ApplyTo(config); err != nil { ... } // RecommendedOptions, say
//	if err := watchcache.Install(&config.Config); err != nil { ... }
//	...
//	generic, err := config.Complete().New("my-apiserver", genericapiserver.NewEmptyDelegate())
//	...
//	if err := watchcache.AddReadinessHook(generic); err != nil { ... }
//
// Remove the two calls, and the server is back on the cacher that
// k8s.io/apiserver ships.
//
// With one call more, InstallAPIGroup in place of the server's own method, lists
// are answered from kept bytes.
//
// With Install, a server gets:
//   - One etcd client per set of etcd servers for all caches, and one cache for all
//     stores of a resource with the same codec, e.g. one for each served version.
//   - The flags --watch-cache=false and --watch-cache-sizes=resource.group#0 as
//     before: such resources are served straight from etcd.
//   - The metrics of package metrics in the registry that /metrics shows, and
//     beside them those of the shipped cacher, for dashboards that were made for it.
//   - The page /debug/watchcache of package debug, for clients that the server
//     authorizes for this URL.
//   - Checks of etcd that ask through the clients of the caches for /healthz and /readyz,
//     so that they recover when reads do, and none for /livez.
//   - Flags for operators, with Options and WithOptions: for the way back to
//     the shipped cacher, and for comparisons with it, without a build.
//   - Every option of package cacher: for example cacher.Only and cacher.Except, to adopt
//     the cache resource by resource; cacher.Configure; cacher.WithRawStorage, for storage
//     that is not etcd's.
package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/funcvalue"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// ErrInstalled is returned by a second Install on one Config, which could have
// other options than the first.
var ErrInstalled = errors.New("the watch cache is already installed on this Config")

// Install makes every resource whose storage is built from
// config.RESTOptionsGetter use a cacher.Cacher with the given options.
// Resources that the server's flags exclude from caching stay uncached, and
// resources that cacher.Only, cacher.Except or the flags of Options leave out
// keep the cache that k8s.io/apiserver ships. Call Install once, after EtcdOptions.ApplyTo or
// RecommendedOptions.ApplyTo, which set the getter, and before config is copied
// or completed. An error names every option that can't be used, one line each,
// or is [ErrInstalled]; config is then as it was.
//
// The caches read and write through etcd clients that are opened on first use
// and closed with the last resource, and register their metrics in the registry
// that a server's /metrics shows. The options cacher.WithRawStorage and
// cacher.WithMetrics replace these defaults.
func Install(config *genericapiserver.Config, options ...cacher.Option) error {
	if config == nil {
		return errors.New("server.Install: config is nil")
	}
	if config.RESTOptionsGetter == nil {
		return errors.New("server.Install: config.RESTOptionsGetter is nil: call server.Install after EtcdOptions.ApplyTo or RecommendedOptions.ApplyTo")
	}
	if _, ok := config.RESTOptionsGetter.(*getter); ok {
		return ErrInstalled
	}
	selected, err := cacher.Select(options...)
	if selected.RawStorage && selected.LeaveOut {
		err = errors.Join(err, fmt.Errorf("cacher.WithRawStorage opens the storage of this server, and the shipped cacher reads only etcd: --%s and --%s can't be used", implementationFlag, shippedFlag))
	}
	if err != nil {
		return fmt.Errorf("server.Install: %w", err) // one line for each option
	}
	collectors, err := metrics.New(legacyregistry.Registerer())
	if err != nil {
		return fmt.Errorf("server.Install: %w", err)
	}
	pool := newPool()
	installed := &installation{cached: selected.Cached, inShadow: selected.InShadow, pool: pool}
	installed.mu.unknown = slices.Clone(selected.Named)
	defaults := []cacher.Option{cacher.WithRawStorage(decoration.AsRaw(pool.rawStorage)), cacher.Configure(func(c *cacher.Config) {
		c.Metrics, c.Lists = collectors, &installed.lists
	})}
	options = append(defaults, options...)
	replaceEtcdChecks(config, pool)
	installed.mark(config)
	addHandlers(config, installed)
	config.RESTOptionsGetter = &getter{
		inner:     config.RESTOptionsGetter,
		decorator: installed.observe(cacher.Decorator(options...)),
		custom:    installed.observe(cacher.Decorator(append(options, cacher.Configure(func(c *cacher.Config) { c.Lists = &installed.customLists }))...)),
		installed: installed,
	}
	return nil
}

// addHandlers puts the handlers of an installation between the filters of the server and
// the API, so that filters that log, audit, measure or delay responses see them as before.
func addHandlers(config *genericapiserver.Config, installed *installation) {
	build := config.BuildHandlerChainFunc
	if build == nil {
		build = genericapiserver.DefaultBuildHandlerChain
	}
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		api = installed.customLists.CustomResources(api, customResourceList)
		api = installed.withRepresentations(api)
		api = installed.withKeptBytes(api)
		api = installed.withoutProtobufOfObjects(api)
		if !installed.inShadow {
			api = installed.lists.Bound(api, encodedWhole)
		}
		return build(installed.withPage(api, c), c)
	}
}

// getter returns the options of inner with the decorator of the watch cache.
type getter struct {
	inner     generic.RESTOptionsGetter
	decorator generic.StorageDecorator
	// custom is the decorator of the getter that CustomResources returns.
	custom    generic.StorageDecorator
	installed *installation
}

// errNotInstalled is for a Config without the watch cache.
var errNotInstalled = errors.New("the watch cache is not installed on this Config: call Install first")

// GetRESTOptions opens no storage: servers also call it, without an example, to
// identify a resource.
func (g *getter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.inner.GetRESTOptions(resource, example)
	g.installed.markKnown(resource)
	if err == nil && g.installed.cached(resource) && !isUndecorated(options.Decorator) {
		options.Decorator = g.decorator
	}
	return options, err
}

// isUndecorated reports whether the decorator is generic.UndecoratedStorage,
// with which EtcdOptions' getter excludes a resource from caching.
func isUndecorated(decorator generic.StorageDecorator) bool {
	return funcvalue.Code(decorator) == funcvalue.Code(generic.UndecoratedStorage)
}

// etcdPatience is how long CheckEtcd waits for an answer.
const etcdPatience = 5 * time.Second

// CheckEtcd returns nil if the etcd that a server's --etcd-* flags describe
// answers, and otherwise an error of one line with the reason: no server
// answers ([etcd3.ErrUnreachable]), or TLS does not fit ([etcd3.ErrTLS]). Call CheckEtcd
// before building the server, which would otherwise wait for its storage. CheckEtcd takes
// five seconds at most.
func CheckEtcd(ctx context.Context, config storagebackend.Config) error {
	settings, err := etcd3.ConfigFrom(config)
	if err != nil {
		return err
	}
	settings.Prefix, settings.CompactionInterval, settings.DialTimeout = "", 0, etcdPatience
	if err := settings.Validate(); err != nil {
		return err // names the endpoint, without its password
	}
	backend, err := etcd3.Open(ctx, settings)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(settings.Endpoints, ","), err)
	}
	return backend.Close()
}

// Share makes every resource whose storage is built from config.RESTOptionsGetter
// use the caches of an earlier Install on installed, with its options, etcd clients,
// metrics and page /debug/watchcache. Share is for servers that pass requests on to one
// another, each with a Config of its own, as the three within a kube-apiserver do:
// call Install on the Config of the server that clients reach, whose handlers are those
// that are called, and Share for each server behind it.
//
// The Config may be a copy of installed that was made before Install or after it, and
// whose getter was then set, as EtcdOptions.ApplyTo sets it. Call Share before config
// is completed. An error leaves config as it was: [ErrInstalled] if config has
// caches already.
func Share(installed, config *genericapiserver.Config) error {
	switch {
	case installed == nil:
		return errors.New("server.Share: installed is nil")
	case config == nil:
		return errors.New("server.Share: config is nil")
	case config.RESTOptionsGetter == nil:
		return errors.New("server.Share: config.RESTOptionsGetter is nil: call server.Share after EtcdOptions.ApplyTo")
	}
	if _, ok := config.RESTOptionsGetter.(*getter); ok {
		return ErrInstalled
	}
	caches, ok := installed.RESTOptionsGetter.(*getter)
	if !ok {
		return fmt.Errorf("server.Share: the first Config: %w", errNotInstalled)
	}
	replaceEtcdChecks(config, caches.installed.pool)
	caches.installed.mark(config)
	shared := *caches
	shared.inner = config.RESTOptionsGetter
	config.RESTOptionsGetter = &shared
	return nil
}
