// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

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

// AddReadinessHook makes /readyz fail until every cache that was built through
// Install has been ready, all at one time; from then on it does not look at them
// again: a cache that resynchronizes later delegates or refuses what it can't
// answer, and taking the whole server out of service would not help. /livez and
// /healthz don't wait for caches, so a slow etcd restarts nobody.
//
// The server must come from a Config that Install was called on. Call it once per
// server and before PrepareRun; resources may be installed before or after.
func AddReadinessHook(server *genericapiserver.GenericAPIServer) error {
	if server == nil {
		return errors.New("server.AddReadinessHook: server is nil")
	}
	for _, check := range server.HealthzChecks() {
		if m, ok := check.(marker); ok {
			return m.installation.hook(server)
		}
	}
	return errors.New("server.AddReadinessHook: the watch cache is not installed on this server's Config: call Install before Config.Complete")
}

// installation knows the caches of one Install.
type installation struct {
	selection cacher.Selection
	mu        struct {
		sync.Mutex
		// caches has one entry per cache that was built and not yet destroyed.
		caches map[*entry]struct{}
		// warm: all caches were ready at one time, and there was one.
		warm bool
		// hooked has the servers whose /readyz asks this installation.
		hooked map[*genericapiserver.GenericAPIServer]struct{}
		// asked has the resources whose options were asked for, by whatever
		// decorator they are stored then.
		asked map[schema.GroupResource]bool
	}
}

type entry struct {
	resource schema.GroupResource
	storage  storage.Interface
}

// observe wraps the decorator such that the installation knows every cache from
// its creation to its destruction.
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
	if i.mu.hooked == nil {
		i.mu.hooked = map[*genericapiserver.GenericAPIServer]struct{}{}
	}
	i.mu.hooked[server] = struct{}{}
	return nil
}

// check names the caches that are not ready, or returns nil for good. The caches'
// own locks are taken with none of ours held.
func (i *installation) check(*http.Request) error {
	i.mu.Lock()
	warm := i.mu.warm
	caches := make([]*entry, 0, len(i.mu.caches))
	for e := range i.mu.caches {
		caches = append(caches, e)
	}
	i.mu.Unlock()
	if warm || len(caches) == 0 {
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
	if unknown := i.unknown(); first && len(unknown) > 0 {
		klog.InfoS("Resources named by cacher.Only or cacher.Except are not stored by this server", "resources", unknown)
	}
	return nil
}

// ask notes that a resource is stored.
func (i *installation) ask(resource schema.GroupResource) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.asked == nil {
		i.mu.asked = map[schema.GroupResource]bool{}
	}
	i.mu.asked[resource] = true
}

// unknown returns the resources that options name and nobody has asked for: they
// are misspelt, most likely.
func (i *installation) unknown() (unknown []schema.GroupResource) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, resource := range i.selection.Named() {
		if !i.mu.asked[resource] {
			unknown = append(unknown, resource)
		}
	}
	return unknown
}

// marker is a health check that always passes. It goes from a Config to the server
// made of it, and that is how the server's installation is found: the server keeps
// nothing else of what Install changes.
type marker struct {
	*installation
}

func (marker) Name() string              { return "watchcache-installed" }
func (marker) Check(*http.Request) error { return nil }
