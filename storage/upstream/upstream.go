// SPDX-License-Identifier: Apache-2.0

// Package upstream is a storage.Interface over one resource of another API server: the
// storage below a cache that mirrors a cluster.
//
//	pods, err := upstream.New(upstream.Config{
//		REST: kubeconfig, Resource: corev1.SchemeGroupVersion.WithResource("pods"), Namespaced: true,
//		Serializer: scheme.Codecs.WithoutConversion(), ResourcePrefix: "/pods",
//		NewFunc: func() runtime.Object { return &corev1.Pod{} }, NewListFunc: ...
//	})
//	cache, err := cacher.New(cacher.Config{Storage: pods, ConsistentGetFromStorage: true, ...})
//
// ResourceVersions and continue tokens are the upstream's own, so that clients may move
// between the upstream and whatever serves a Store. So are errors, except for keys that
// don't exist, or exist already: package storage has its own. If the upstream gives no
// answer, the error is a 504 with the reason.
//
// # Freshness
//
// A Store proves how fresh its watch is, so that a cache can serve consistent reads:
// docs/decisions/0023-how-a-relay-knows-that-it-is-fresh.md. On a resource that changes
// several times a second the next change is the proof. On a quiet one, the proof takes one
// to two seconds and two small requests, for all reads that wait. GETs should not wait:
// set cacher.Config.ConsistentGetFromStorage.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kube-watchcache/watchcache/storage/capability"
)

// Config describes one resource of an upstream. REST, Resource, ResourcePrefix, NewFunc and
// NewListFunc are required.
type Config struct {
	// REST is the way to the upstream and the credentials for it. Its ContentType and
	// AcceptContentTypes choose protobuf or JSON. It must have no Timeout, which would
	// end watches. Stores with equal settings share connections.
	REST *rest.Config
	// Resource has the version for reads and writes.
	Resource schema.GroupVersionResource
	// Namespaced reports whether objects are in namespaces.
	Namespaced bool
	// Serializer decodes the upstream's answers into the types of NewFunc and
	// NewListFunc, and encodes writes: scheme.Codecs.WithoutConversion() for types of
	// Resource's version, the codecs of a scheme for internal ones. nil: objects are
	// unstructured, and read and written as JSON.
	Serializer runtime.NegotiatedSerializer
	// ResourcePrefix is the key prefix of the resource's objects, "/pods" or "/pods/".
	// An object's key is the prefix, its namespace if Namespaced, and its name.
	ResourcePrefix string
	// NewFunc returns an empty object, NewListFunc an empty list.
	NewFunc     func() runtime.Object
	NewListFunc func() runtime.Object

	// Expires must be set for a resource whose objects have a time to live upstream, as
	// events do: etcd deletes all objects of a lease in one revision, so that a
	// deletion may not be the last event at its resourceVersion. Reads see the last
	// deletion a second or two later then. A Store that receives two deletions at one
	// resourceVersion behaves as if Expires were set.
	Expires bool
	// Registerer gets the counters of proofs. nil: nothing is counted.
	Registerer prometheus.Registerer
}

// Store is a storage.Interface. Objects that it returns belong to the caller. All methods
// are safe for concurrent use. Writes go to the resource itself: where status is a
// subresource, the upstream ignores changes of it.
type Store struct {
	config  Config
	client  *rest.RESTClient
	metrics *metrics
	// told is the highest version of a consistent list. missing: the upstream has no such
	// resource. unproven: it can't prove freshness. leases: it has deleted several objects
	// in one revision.
	told                      atomic.Uint64
	missing, unproven, leases atomic.Bool

	mu struct {
		sync.Mutex
		streams map[*stream]string // with the caller's name for them
		// vain counts the proofs in a row that failed. The next one by an upstream that
		// counts as unable is at next, and after that one, pause later.
		vain  int
		pause time.Duration
		next  time.Time
	}
}

var (
	_ storage.Interface           = (*Store)(nil)
	_ capability.ProgressReporter = (*Store)(nil)
	_ capability.HistoryKeeper    = (*Store)(nil)
	_ capability.SlowReporter     = (*Store)(nil)
	_ capability.ServerSharer     = (*Store)(nil)
)

// Server implements capability.ServerSharer.
func (s *Store) Server() any { return s.config.REST.Host }

// New returns a Store. It sends nothing yet. An error names every invalid field.
func New(config Config) (*Store, error) {
	if config.ResourcePrefix != "" && !strings.HasSuffix(config.ResourcePrefix, "/") {
		config.ResourcePrefix += "/"
	}
	if err := config.validate(); err != nil {
		return nil, err
	}
	connection := dynamic.ConfigFor(config.REST)
	if config.Serializer != nil {
		connection = rest.CopyConfig(config.REST)
		connection.NegotiatedSerializer = config.Serializer
	}
	gv := config.Resource.GroupVersion()
	connection.GroupVersion, connection.APIPath = &gv, "/apis"
	if gv.Group == "" {
		connection.APIPath = "/api"
	}
	connection.QPS, connection.WarningHandler = -1, rest.NoWarnings{} // the upstream's priority and fairness decides
	client, err := rest.RESTClientFor(connection)
	if err != nil {
		return nil, fmt.Errorf("upstream.Config.REST: %w", err)
	}
	counters, err := newMetrics(config.Registerer, config.Resource.GroupResource())
	if err != nil {
		return nil, fmt.Errorf("upstream.Config.Registerer: %w", err)
	}
	s := &Store{config: config, client: client, metrics: counters}
	s.mu.streams = make(map[*stream]string)
	return s, nil
}

func (c Config) validate() error {
	var problems []error
	field := func(bad bool, name string, value any, want string) {
		if bad {
			problems = append(problems, fmt.Errorf("upstream.Config.%s is %v: %s", name, value, want))
		}
	}
	const required = "it is required"
	field(c.REST == nil, "REST", "nil", required)
	if c.REST != nil {
		field(c.REST.Timeout != 0, "REST.Timeout", c.REST.Timeout, "it would end watches, want 0")
	}
	field(c.Resource.Resource == "" || c.Resource.Version == "", "Resource", fmt.Sprintf("%q", c.Resource), "want a version and a resource")
	field(!strings.HasPrefix(c.ResourcePrefix, "/") || len(c.ResourcePrefix) < 3 || c.ResourcePrefix != path.Clean(c.ResourcePrefix)+"/", "ResourcePrefix", fmt.Sprintf("%q", c.ResourcePrefix), `want "/" and a name, for example "/pods/"`)
	field(c.NewFunc == nil, "NewFunc", "nil", required)
	field(c.NewListFunc == nil, "NewListFunc", "nil", required)
	if c.NewFunc == nil || c.NewListFunc == nil {
		return errors.Join(problems...)
	}
	object, list := c.NewFunc(), c.NewListFunc()
	_, err := meta.Accessor(object)
	field(err != nil || object == nil, "NewFunc", fmt.Sprintf("a function that returns a %T", object), "want a pointer to an empty object with metadata")
	items, err := meta.GetItemsPtr(list)
	field(err != nil || reflect.PointerTo(reflect.TypeOf(items).Elem().Elem()) != reflect.TypeOf(object), "NewListFunc", fmt.Sprintf("a function that returns a %T", list), fmt.Sprintf("want an empty list of %T", object))
	return errors.Join(problems...)
}

// serves fails for a resource or prefix that is not the Store's.
func (s *Store) serves(resource schema.GroupResource, resourcePrefix string) error {
	prefix := strings.TrimSuffix(resourcePrefix, "/") + "/"
	own := s.config.Resource.GroupResource()
	if resource == own && prefix == s.config.ResourcePrefix {
		return nil
	}
	return fmt.Errorf("%s at %q: the Store is for %s at %q", resource, prefix, own, s.config.ResourcePrefix)
}

// Missing reports whether the upstream's discovery has no such resource since a list or
// watch failed: a CustomResourceDefinition was deleted, for example.
func (s *Store) Missing() bool { return s.missing.Load() }

// ReportsWithin implements capability.SlowReporter.
func (s *Store) ReportsWithin() time.Duration { return proofTimeout }

// KeepsHistory implements capability.HistoryKeeper: a watch from an earlier version is whole, or gets 410.
func (s *Store) KeepsHistory() bool { return true }

// Versioner implements storage.Interface.
func (s *Store) Versioner() storage.Versioner { return versioner }

var versioner = storage.APIObjectVersioner{}

// ReadinessCheck implements storage.Interface. A Store has no state to get ready.
func (s *Store) ReadinessCheck() error { return nil }

// EnableResourceSizeEstimation implements storage.Interface. Nothing is stored in bytes.
func (s *Store) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// CompactRevision implements storage.Interface. The upstream does not show its compactions.
func (s *Store) CompactRevision() int64 { return 0 }

// request begins a request that is sent once: a client that repeats it knows better when.
func (s *Store) request(verb string, o object) *rest.Request {
	r := s.client.Verb(verb).MaxRetries(0).Resource(s.config.Resource.Resource).NamespaceIfScoped(o.namespace, o.namespace != "")
	if o.name != "" {
		r = r.Name(o.name)
	}
	return r
}

func (s *Store) get(o object) *rest.Request { return s.request(http.MethodGet, o) }

// Stats implements storage.Interface. The average size is not known.
func (s *Store) Stats(ctx context.Context) (storage.Stats, error) {
	head, err := s.head(ctx)
	if err != nil {
		return storage.Stats{}, err
	}
	return storage.Stats{ObjectCount: int64(len(head.Items)) + ptr.Deref(head.RemainingItemCount, 0)}, nil
}
