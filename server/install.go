// SPDX-License-Identifier: Apache-2.0

// Package server makes a k8s.io/apiserver server use this module's watch cache:
//
//	import watchcache "github.com/kube-watchcache/watchcache/server"
//	...
//	if err := options.ApplyTo(config); err != nil { ... } // e.g. RecommendedOptions
//	if err := watchcache.Install(&config.Config); err != nil { ... }
//	...
//	generic, err := config.Complete().New("my-apiserver", genericapiserver.NewEmptyDelegate())
//	...
//	if err := watchcache.AddReadinessHook(generic); err != nil { ... }
//
// Without the two calls, the server uses the cacher of k8s.io/apiserver. A third call,
// InstallAPIGroup in place of the server's own method, serves lists from kept bytes.
//
// Install gives a server:
//   - One etcd client per set of etcd servers, and one cache for all stores of a resource with the
//     same codec, e.g. one per served version.
//   - The flags --watch-cache=false and --watch-cache-sizes=resource.group#0 as before, to read a
//     resource straight from etcd.
//   - The metrics of package metrics on /metrics, and those of the shipped cacher for existing
//     dashboards.
//   - The page /debug/watchcache of package debug, for authorized clients.
//   - etcd checks for /healthz and /readyz that recover with the caches' clients. /livez has no
//     etcd check.
//   - Optional flags (Options, WithOptions), e.g. to go back to the shipped cacher or to compare
//     with it.
//   - The options of package cacher, e.g. cacher.Only and cacher.Except to adopt the cache resource
//     by resource, cacher.Configure, and cacher.WithRawStorage for storage other than etcd.
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
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/funcvalue"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// ErrInstalled is returned by a second Install on one Config.
var ErrInstalled = errors.New("the watch cache is already installed on this Config")

// Install makes every resource whose storage is built from config.RESTOptionsGetter use a
// cacher.Cacher with the given options. Resources excluded by the server's flags stay uncached.
// Resources excluded by cacher.Only, cacher.Except or Options keep the cache of k8s.io/apiserver.
// Call Install once, after EtcdOptions.ApplyTo or RecommendedOptions.ApplyTo, which set the getter,
// and before config is copied or completed. On error config is unchanged; the error is
// [ErrInstalled], or has one line per invalid option.
//
// By default, the caches open etcd clients on first use, close them with the last resource, and
// register metrics in the registry of /metrics; see cacher.WithRawStorage and cacher.WithMetrics.
func Install(config *genericapiserver.Config, options ...cacher.Option) error {
	return installWith(config, nil, options)
}

// installWith is Install with the storages of some resources, each by the decorator of its options.
func installWith(config *genericapiserver.Config, own map[schema.GroupResource]generic.RESTOptions, options []cacher.Option) error {
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
		return fmt.Errorf("server.Install: %w", err) // one line per option
	}
	collectors, err := metrics.New(legacyregistry.Registerer())
	if err != nil {
		return fmt.Errorf("server.Install: %w", err)
	}
	pool := newPool()
	installed := &installation{cached: selected.Cached, inShadow: selected.InShadow, pool: pool}
	installed.mu.unknown = slices.Clone(selected.Named)
	open := func(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
		if o, ok := own[r.Config.GroupResource]; ok {
			return decoration.Call(o.Decorator, r)
		}
		return pool.rawStorage(r)
	}
	defaults := []cacher.Option{cacher.WithRawStorage(decoration.AsRaw(open)), cacher.Configure(func(c *cacher.Config) {
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

// addHandlers adds the handlers inside of the server's filters, which see no difference.
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

type getter struct {
	inner     generic.RESTOptionsGetter
	decorator generic.StorageDecorator
	// custom is the decorator for custom resources.
	custom    generic.StorageDecorator
	installed *installation
}

var errNotInstalled = errors.New("the watch cache is not installed on this Config: call Install first")

// GetRESTOptions opens no storage: servers also call it to identify a resource.
func (g *getter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.inner.GetRESTOptions(resource, example)
	g.installed.markKnown(resource)
	if err == nil && g.installed.cached(resource) && !isUndecorated(options.Decorator) {
		options.Decorator = g.decorator
	}
	return options, err
}

// isUndecorated reports whether EtcdOptions' getter excludes a resource from caching.
func isUndecorated(decorator generic.StorageDecorator) bool {
	return funcvalue.Code(decorator) == funcvalue.Code(generic.UndecoratedStorage)
}

// etcdPatience is the timeout of CheckEtcd.
const etcdPatience = 5 * time.Second

// CheckEtcd returns nil if the etcd of a server's --etcd-* flags answers within five seconds, and
// otherwise a one-line error, e.g. [etcd3.ErrUnreachable] or [etcd3.ErrTLS]. Call it before
// building the server, which blocks until its storage answers.
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

// Share makes every resource whose storage is built from config.RESTOptionsGetter use the caches of
// an earlier Install on installed, with its options, etcd clients, metrics and debug page. It is
// for servers that delegate to one another, e.g. the three in a kube-apiserver: call Install for
// the outermost one, whose handlers run, and Share for the others.
//
// The Config may be a copy of installed, made before or after Install, with its own getter set,
// e.g. by EtcdOptions.ApplyTo. Call Share before config is completed. On error config is unchanged;
// the error is [ErrInstalled] if config already has caches.
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
