// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher"
)

// AddReadinessHook makes /readyz fail until all caches that were built through
// Install are ready at the same time. From then on the check always passes: a
// cache that lists its storage again later passes requests on to storage or
// refuses them, and taking the whole server out of service would not help.
// /livez and /healthz do not wait for caches, so that a slow etcd restarts no
// server.
//
// When the server shuts down, each open watch that has asked for bookmarks is sent a
// last one before the server ends it: see [cacher.Cacher.Bookmark].
//
// The server must be made of a Config that Install was called on. Call
// AddReadinessHook once per server and before PrepareRun; resources may be
// installed before or after. Anything else is an error.
func AddReadinessHook(server *genericapiserver.GenericAPIServer) error {
	if server == nil {
		return errors.New("server.AddReadinessHook: server is nil")
	}
	if i := installationOf(server); i != nil {
		return i.hook(server)
	}
	return errors.New("server.AddReadinessHook: the watch cache is not installed on this server's Config: call Install before Config.Complete")
}

// Readiness returns nil once the check that AddReadinessHook adds has passed,
// and before that an error that names the caches that are not ready, each with
// the reason. /readyz does not show reasons to its clients; a server may log
// them. For a server without the watch cache, Readiness returns nil.
func Readiness(server *genericapiserver.GenericAPIServer) error {
	if server == nil {
		return errors.New("server.Readiness: server is nil")
	}
	if i := installationOf(server); i != nil {
		return i.check(nil)
	}
	return nil
}

// installationOf returns the installation of the server's Config, nil if there
// is none.
func installationOf(server *genericapiserver.GenericAPIServer) *installation {
	for _, check := range server.HealthzChecks() {
		if m, ok := check.(marker); ok {
			return m.installation
		}
	}
	return nil
}

// installation keeps track of the caches of one Install.
type installation struct {
	// cached reports whether a resource is cached, named are the resources that
	// options name.
	cached func(schema.GroupResource) bool
	named  []schema.GroupResource
	// inShadow: the shipped cacher answers, and the caches are in its shadow.
	inShadow bool
	// unknownReported is done once resources in named were looked for.
	unknownReported sync.Once
	pool            *pool
	// lists is that of the groups that InstallAPIGroup has installed, and of their
	// caches; customLists is that of the caches of custom resources alone.
	lists, customLists cacher.ListEncodings
	// groups are the versions of the groups that InstallAPIGroup has installed, as
	// schema.GroupVersion to *servedGroup.
	groups sync.Map
	mu     struct {
		sync.Mutex
		// caches has one entry for each cache that was built and not yet destroyed.
		caches map[*entry]struct{}
		// built counts the caches that were ever built.
		built int
		// warm is true once all caches were ready at the same time, and there was at
		// least one.
		warm bool
		// hooked are the servers whose /readyz asks this installation.
		hooked map[*genericapiserver.GenericAPIServer]struct{}
		// asked are the resources whose options were asked for, cached or not.
		asked map[schema.GroupResource]bool
	}
}

type entry struct {
	resource schema.GroupResource
	storage  storage.Interface
	built    int // which of the installation's caches it is
}

// observe wraps the decorator, so that the installation has an entry for every
// cache from its creation to its destruction.
func (i *installation) observe(decorate generic.StorageDecorator) generic.StorageDecorator {
	return func(config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object, attributes storage.AttrFunc,
		triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		cached, destroy, err := decorate(config, resourcePrefix, keyFunc, newFunc, newListFunc, attributes, triggers, indexers)
		if err != nil {
			return cached, destroy, err
		}
		e := &entry{resource: config.GroupResource, storage: cached}
		i.add(e)
		return cached, func() {
			i.remove(e)
			destroy()
		}, nil
	}
}

func (i *installation) add(e *entry) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.caches == nil {
		i.mu.caches = map[*entry]struct{}{}
	}
	i.mu.built++
	e.built = i.mu.built
	i.mu.caches[e] = struct{}{}
}

func (i *installation) remove(e *entry) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.mu.caches, e)
}

func (i *installation) hook(server *genericapiserver.GenericAPIServer) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, ok := i.mu.hooked[server]; ok {
		return errors.New("server.AddReadinessHook: called twice for one server")
	}
	if err := server.AddReadyzChecks(healthz.NamedCheck("watchcache", i.check)); err != nil {
		return fmt.Errorf("server.AddReadinessHook: %w", err)
	}
	// A server also has the hooks of the servers that it delegates to.
	name := fmt.Sprintf("watchcache-bookmarks-%d", len(server.PreShutdownHooks()))
	if err := server.AddPreShutdownHook(name, i.bookmark); err != nil {
		return fmt.Errorf("server.AddReadinessHook: %w", err)
	}
	if i.mu.hooked == nil {
		i.mu.hooked = map[*genericapiserver.GenericAPIServer]struct{}{}
	}
	i.mu.hooked[server] = struct{}{}
	return nil
}

// bookmarkTime is how long a server that shuts down waits for clients to take their
// last bookmark.
const bookmarkTime = 2 * time.Second

// bookmark tells the clients of all watches where they are, before the server ends
// the watches: other servers then have all that the clients still need.
func (i *installation) bookmark() error {
	ctx, cancel := context.WithTimeout(context.Background(), bookmarkTime)
	defer cancel()
	var sending sync.WaitGroup
	for _, c := range i.all() {
		sending.Go(func() { _ = c.Bookmark(ctx) }) // the server shuts down in any case
	}
	sending.Wait()
	return nil
}

// check returns an error that names the caches that are not ready; once it has
// returned nil, it always does. The caches' locks are taken without holding the
// installation's.
func (i *installation) check(*http.Request) error {
	i.mu.Lock()
	warm := i.mu.warm
	caches := make([]*entry, 0, len(i.mu.caches))
	for e := range i.mu.caches {
		caches = append(caches, e)
	}
	i.mu.Unlock()
	switch {
	case warm:
		return nil
	case len(caches) == 0:
		i.reportUnknown()
		return nil
	}
	var waiting []string
	for _, e := range caches {
		if err := e.storage.ReadinessCheck(); err != nil {
			waiting = append(waiting, fmt.Sprintf("%s (%v)", e.resource, err))
		}
	}
	if len(waiting) > 0 {
		slices.Sort(waiting)
		waiting = slices.Compact(waiting) // stores of two versions share a cache
		return fmt.Errorf("caches that are not ready: %s", strings.Join(waiting, ", "))
	}
	i.mu.Lock()
	first := !i.mu.warm
	i.mu.warm = true
	i.mu.Unlock()
	if first {
		klog.InfoS("All watch caches of the server have their state", "resources", resourcesOf(caches))
	}
	i.reportUnknown()
	return nil
}

// reportUnknown logs what unknown returns, once.
func (i *installation) reportUnknown() {
	i.unknownReported.Do(func() {
		if unknown := i.unknown(); len(unknown) > 0 {
			klog.InfoS("Unknown resource in a watch cache option (misspelt?): this server does not store it, or not yet", "resources", fmt.Sprint(unknown))
		}
	})
}

// resourcesOf names the resources of the caches, each once.
func resourcesOf(caches []*entry) []string {
	names := make([]string, len(caches))
	for n, e := range caches {
		names[n] = e.resource.String()
	}
	slices.Sort(names)
	return slices.Compact(names) // stores of two versions share a cache
}

// ask records that a resource's options were asked for.
func (i *installation) ask(resource schema.GroupResource) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.asked == nil {
		i.mu.asked = map[schema.GroupResource]bool{}
	}
	i.mu.asked[resource] = true
}

// unknown returns the resources that the options name and that the server does
// not store: most likely their names are misspelt.
func (i *installation) unknown() (unknown []schema.GroupResource) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, resource := range i.named {
		if !i.mu.asked[resource] {
			unknown = append(unknown, resource)
		}
	}
	return unknown
}

// mark makes servers of config known as those of the installation. The slice is
// replaced, not written to: copies of config share it.
func (i *installation) mark(config *genericapiserver.Config) {
	others := slices.DeleteFunc(slices.Clone(config.HealthzChecks), func(check healthz.HealthChecker) bool {
		_, ok := check.(marker)
		return ok
	})
	config.HealthzChecks = append(others, marker{i})
}

// marker is a health check that always passes. A Config passes it on to the
// server made of it, so that the server's installation can be found: the server
// keeps nothing else that Install changes.
type marker struct {
	*installation
}

func (marker) Name() string              { return "watchcache-installed" }
func (marker) Check(*http.Request) error { return nil }
