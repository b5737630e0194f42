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
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/keptlists"
)

// AddReadinessHook makes /readyz fail until all caches built through Install are ready at the same
// time. Afterwards the check always passes. A cache that relists forwards requests to storage or
// rejects them, so taking the server out of service would not help. /livez and /healthz do not wait
// for caches, so a slow etcd does not restart servers.
//
// At shutdown, open watches that allow bookmarks receive a last one ([cacher.Cacher.Bookmark]). New
// watches then get 429, unless the server keeps serving for a ShutdownDelayDuration.
//
// The server must be built from a Config passed to Install. Call AddReadinessHook once per server,
// before PrepareRun and before or after resources are installed. Anything else is an error.
func AddReadinessHook(server *genericapiserver.GenericAPIServer) error {
	if server == nil {
		return errors.New("server.AddReadinessHook: server is nil")
	}
	i := installationOf(server)
	if i == nil {
		return errors.New("server.AddReadinessHook: the watch cache is not installed on this server's Config: call Install before Config.Complete")
	}
	if _, twice := i.hooked.LoadOrStore(server, nil); twice {
		return errors.New("server.AddReadinessHook: called twice for one server")
	}
	if err := server.AddReadyzChecks(healthz.NamedCheck("watchcache", i.check)); err != nil {
		return fmt.Errorf("server.AddReadinessHook: %w", err)
	}
	// A server inherits the hooks of the servers that it delegates to.
	name := fmt.Sprintf("watchcache-bookmarks-%d", len(server.PreShutdownHooks()))
	if err := server.AddPreShutdownHook(name, func() error {
		i.ending.Store(server.ShutdownDelayDuration == 0) // otherwise the server keeps serving
		return i.bookmark()
	}); err != nil {
		return fmt.Errorf("server.AddReadinessHook: %w", err)
	}
	return nil
}

// Readiness returns nil once the check of AddReadinessHook passed, and until then an error with the
// reason for each cache that isn't ready. A server may log it; /readyz does not show it. It returns
// nil for a server without the watch cache.
func Readiness(server *genericapiserver.GenericAPIServer) error {
	if server == nil {
		return errors.New("server.Readiness: server is nil")
	}
	if i := installationOf(server); i != nil {
		return i.check(nil)
	}
	return nil
}

// installationOf returns the installation of the server's Config, or nil.
func installationOf(server *genericapiserver.GenericAPIServer) *installation {
	for _, check := range server.HealthzChecks() {
		if m, ok := check.(marker); ok {
			return m.installation
		}
	}
	return nil
}

// installation is the state of one Install.
type installation struct {
	// cached reports whether a resource is cached.
	cached func(schema.GroupResource) bool
	// inShadow is true if the shipped cacher serves and the caches are only compared.
	inShadow bool
	pool     *pool
	// lists encodes for groups installed by InstallAPIGroup, customLists for custom resources.
	lists, customLists keptlists.Encoder
	// groups maps each installed schema.GroupVersion to its *servedGroup.
	groups sync.Map
	// withoutProtobuf holds GroupVersionResources of these groups, including subresources.
	withoutProtobuf sync.Map
	// hooked holds the servers whose /readyz uses this installation.
	hooked sync.Map
	// ending is true if the server is about to end all watches. client-go would relist after
	// watches that end within a second without an event.
	ending atomic.Bool
	mu     struct {
		sync.Mutex
		// caches are the open caches, oldest first. Copied on write.
		caches []*entry
		// warm is true once all caches, at least one, were ready at the same time.
		warm bool
		// unknown are resources named in options but not yet requested, most likely misspelt.
		unknown []schema.GroupResource
	}
}

type entry struct {
	resource schema.GroupResource
	storage  storage.Interface
}

// observe wraps the decorator to keep an entry for each open cache.
func (i *installation) observe(decorate generic.StorageDecorator) generic.StorageDecorator {
	return decoration.Decorator(func(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
		cached, destroy, err := decoration.Call(decorate, r)
		if err != nil {
			return cached, destroy, err
		}
		e := &entry{r.Config.GroupResource, cached}
		i.mu.Lock()
		i.mu.caches = append(i.mu.caches, e)
		i.mu.Unlock()
		return cached, func() {
			i.mu.Lock()
			i.mu.caches = slices.DeleteFunc(slices.Clone(i.mu.caches), func(other *entry) bool { return other == e })
			i.mu.Unlock()
			destroy()
		}, nil
	})
}

// bookmarkTime bounds the wait for clients to receive their last bookmark.
const bookmarkTime = 2 * time.Second

// bookmark sends live watches a last bookmark, so that clients can resume at another server.
func (i *installation) bookmark() error {
	ctx, cancel := context.WithTimeout(context.Background(), bookmarkTime)
	defer cancel()
	var sending sync.WaitGroup
	for _, c := range i.all() {
		sending.Go(func() { _ = c.Bookmark(ctx) }) // best effort during shutdown
	}
	sending.Wait()
	return nil
}

// check returns an error that names the caches that aren't ready, or, once ready, always nil. It
// calls the caches, which lock, without holding i.mu.
func (i *installation) check(*http.Request) error {
	i.mu.Lock()
	warm, caches := i.mu.warm, i.mu.caches
	i.mu.Unlock()
	if warm {
		return nil
	}
	var names, waiting []string // stores of two versions share a cache
	for _, e := range caches {
		names = append(names, e.resource.String())
		if err := e.storage.ReadinessCheck(); err != nil {
			waiting = append(waiting, fmt.Sprintf("%s (%v)", e.resource, err))
		}
	}
	if len(waiting) > 0 {
		return fmt.Errorf("caches that are not ready: %s", strings.Join(sets.List(sets.New(waiting...)), ", "))
	}
	i.mu.Lock()
	first, unknown := len(names) > 0 && !i.mu.warm, i.mu.unknown
	i.mu.warm, i.mu.unknown = i.mu.warm || first, nil // log unknown names once
	i.mu.Unlock()
	if first {
		klog.InfoS("All watch caches of the server have their state", "resources", sets.List(sets.New(names...)))
	}
	if len(unknown) > 0 {
		klog.InfoS("Unknown resource in a watch cache option (misspelt?): this server does not store it, or not yet", "resources", fmt.Sprint(unknown))
	}
	return nil
}

func (i *installation) markKnown(resource schema.GroupResource) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.unknown = slices.DeleteFunc(i.mu.unknown, func(r schema.GroupResource) bool { return r == resource })
}

// mark associates the servers of config with the installation. Copies of config share the slice, so
// we replace it.
func (i *installation) mark(config *genericapiserver.Config) {
	others := slices.DeleteFunc(slices.Clone(config.HealthzChecks), func(check healthz.HealthChecker) bool {
		_, ok := check.(marker)
		return ok
	})
	config.HealthzChecks = append(others, marker{i})
}

// marker is a health check that always passes. installationOf finds it in a server, which keeps
// nothing else of Install's changes to its Config.
type marker struct {
	*installation
}

func (marker) Name() string              { return "watchcache-installed" }
func (marker) Check(*http.Request) error { return nil }
