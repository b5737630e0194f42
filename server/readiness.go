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

// AddReadinessHook makes /readyz fail until all caches that were built through
// Install are ready at the same time. From then on the check always passes: a
// cache that lists its storage again later passes requests on to storage or
// refuses them, and taking the whole server out of service would not help.
// /livez and /healthz do not wait for caches, so that a slow etcd restarts no
// server.
//
// When the server shuts down, each open watch that has asked for bookmarks is sent a
// last one before the server ends it: see [cacher.Cacher.Bookmark]. New watches get 429 from
// then on, unless the server has a ShutdownDelayDuration, for which it goes on serving.
//
// The server must be made of a Config that Install was called on. Call
// AddReadinessHook once per server and before PrepareRun; resources may be
// installed before or after. Anything else is an error.
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
	// A server also has the hooks of the servers that it delegates to.
	name := fmt.Sprintf("watchcache-bookmarks-%d", len(server.PreShutdownHooks()))
	if err := server.AddPreShutdownHook(name, func() error {
		i.ending.Store(server.ShutdownDelayDuration == 0) // otherwise the server goes on serving
		return i.bookmark()
	}); err != nil {
		return fmt.Errorf("server.AddReadinessHook: %w", err)
	}
	return nil
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
	// cached reports whether a resource is cached.
	cached func(schema.GroupResource) bool
	// inShadow: the shipped cacher answers, and the caches are in its shadow.
	inShadow bool
	pool     *pool
	// lists is that of the groups that InstallAPIGroup has installed, and of their
	// caches; customLists is that of the caches of custom resources alone.
	lists, customLists keptlists.Encoder
	// groups are the versions of the groups that InstallAPIGroup has installed, as
	// schema.GroupVersion to *servedGroup.
	groups sync.Map
	// withoutProtobuf are the schema.GroupVersionResource of these groups, subresources too.
	withoutProtobuf sync.Map
	// hooked are the servers whose /readyz asks this installation.
	hooked sync.Map
	// ending: the server is about to end all watches. client-go lists again after a watch that
	// ends within a second and has brought nothing.
	ending atomic.Bool
	mu     struct {
		sync.Mutex
		// caches were built and not yet destroyed, the oldest first.
		caches []*entry
		// warm is true once all caches were ready at the same time, and there was at
		// least one.
		warm bool
		// unknown are the resources that options name and that nobody has asked for yet:
		// most likely their names are misspelt.
		unknown []schema.GroupResource
	}
}

type entry struct {
	resource schema.GroupResource
	storage  storage.Interface
}

// observe wraps the decorator, so that the installation has an entry for every
// cache from its creation to its destruction.
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

// bookmarkTime is how long a server that shuts down waits for clients to take their
// last bookmark.
const bookmarkTime = 2 * time.Second

// bookmark sends each live watch that has asked for bookmarks a last one, before the server
// ends the watches: other servers then have all that the clients still need.
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
	i.mu.warm, i.mu.unknown = i.mu.warm || first, nil // unknown names are logged once
	i.mu.Unlock()
	if first {
		klog.InfoS("All watch caches of the server have their state", "resources", sets.List(sets.New(names...)))
	}
	if len(unknown) > 0 {
		klog.InfoS("Unknown resource in a watch cache option (misspelt?): this server does not store it, or not yet", "resources", fmt.Sprint(unknown))
	}
	return nil
}

// markKnown records that a resource's options were asked for.
func (i *installation) markKnown(resource schema.GroupResource) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.unknown = slices.DeleteFunc(i.mu.unknown, func(r schema.GroupResource) bool { return r == resource })
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
