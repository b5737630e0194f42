// SPDX-License-Identifier: Apache-2.0

// Package upstream implements storage.Interface over one resource of another API server, so that a
// cache can mirror a cluster.
//
//	pods, err := upstream.New(upstream.Config{
//		REST: kubeconfig, Resource: corev1.SchemeGroupVersion.WithResource("pods"), Namespaced: true,
//		Serializer: scheme.Codecs.WithoutConversion(), ResourcePrefix: "/pods",
//		NewFunc: func() runtime.Object { return &corev1.Pod{} }, NewListFunc: ...
//	})
//	cache, err := cacher.New(cacher.Config{Storage: pods, ConsistentGetFromStorage: true, ...})
//
// ResourceVersions and continue tokens are the upstream's own, so clients may move between the
// upstream and a server over a Store. Errors are the upstream's, except those of package storage
// for missing and existing keys, and a 504 with the reason if the upstream does not answer.
//
// # Freshness
//
// A Store proves how fresh its watch is, so that a cache can serve consistent reads: see
// docs/decisions/0023-how-a-relay-knows-that-it-is-fresh.md. If a resource changes several times a
// second, its next change is the proof. Otherwise a proof takes one to two seconds and two small
// requests, shared by all waiting reads. Set cacher.Config.ConsistentGetFromStorage so that GETs
// don't wait.
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
	// REST is the upstream's address and credentials. Its content types select protobuf or JSON.
	// Its Timeout must be 0, because it would end watches. Stores with equal settings share
	// connections.
	REST *rest.Config
	// Resource includes the version for reads and writes.
	Resource schema.GroupVersionResource
	// Namespaced is true if objects have namespaces.
	Namespaced bool
	// Serializer decodes responses into the types of NewFunc and NewListFunc, and encodes writes:
	// scheme.Codecs.WithoutConversion() for types of Resource's version, or the scheme's codecs for
	// internal types. Nil means unstructured objects in JSON.
	Serializer runtime.NegotiatedSerializer
	// ResourcePrefix is the prefix of keys, e.g. "/pods" or "/pods/". The namespace, if Namespaced,
	// and the name follow.
	ResourcePrefix string
	// NewFunc returns an empty object, NewListFunc an empty list.
	NewFunc     func() runtime.Object
	NewListFunc func() runtime.Object

	// Expires must be set if objects expire upstream, as events do. etcd deletes all objects of a
	// lease in one revision, so a deletion may not be the last event at its resourceVersion. Reads
	// then see the last deletion one to two seconds later. A Store that receives two deletions at
	// one resourceVersion behaves as if Expires were set.
	Expires bool
	// Registerer registers the counters of proofs. Nil disables them.
	Registerer prometheus.Registerer
}

// Store is a storage.Interface, safe for concurrent use. Callers own the returned objects. Writes
// can't change a status subresource.
type Store struct {
	config  Config
	client  *rest.RESTClient
	metrics *metrics
	// told is the highest version of a consistent list. missing is true if the upstream lacks the
	// resource, unproven if it can't prove freshness, leases if it deleted several objects in one
	// revision.
	told                      atomic.Uint64
	missing, unproven, leases atomic.Bool

	mu struct {
		sync.Mutex
		streams map[*stream]string // to the caller's name
		// vain counts consecutive failed proofs. If the upstream is unable, next is the time of the
		// next proof, and pause the interval after it.
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

// New returns a Store without connecting to the upstream. Its error names every invalid field.
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
	connection.QPS, connection.WarningHandler = -1, rest.NoWarnings{} // the upstream's priority and fairness limits the rate
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

func (s *Store) serves(resource schema.GroupResource, resourcePrefix string) error {
	prefix := strings.TrimSuffix(resourcePrefix, "/") + "/"
	own := s.config.Resource.GroupResource()
	if resource == own && prefix == s.config.ResourcePrefix {
		return nil
	}
	return fmt.Errorf("%s at %q: the Store is for %s at %q", resource, prefix, own, s.config.ResourcePrefix)
}

// Missing reports whether a list or watch failed and discovery confirmed that the upstream lacks
// the resource, e.g. after its CustomResourceDefinition was deleted.
func (s *Store) Missing() bool { return s.missing.Load() }

// ReportsWithin implements capability.SlowReporter.
func (s *Store) ReportsWithin() time.Duration { return proofTimeout }

// KeepsHistory implements capability.HistoryKeeper: a watch from an earlier version gets every
// event or a 410.
func (s *Store) KeepsHistory() bool { return true }

// Versioner implements storage.Interface.
func (s *Store) Versioner() storage.Versioner { return versioner }

var versioner = storage.APIObjectVersioner{}

// ReadinessCheck implements storage.Interface. A Store is always ready.
func (s *Store) ReadinessCheck() error { return nil }

// EnableResourceSizeEstimation implements storage.Interface. A Store stores no bytes.
func (s *Store) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// CompactRevision implements storage.Interface. The upstream does not expose its compactions.
func (s *Store) CompactRevision() int64 { return 0 }

// request creates a request without retries; clients decide when to retry.
func (s *Store) request(verb string, o object) *rest.Request {
	r := s.client.Verb(verb).MaxRetries(0).Resource(s.config.Resource.Resource).NamespaceIfScoped(o.namespace, o.namespace != "")
	if o.name != "" {
		r = r.Name(o.name)
	}
	return r
}

func (s *Store) get(o object) *rest.Request { return s.request(http.MethodGet, o) }

// Stats implements storage.Interface. It omits the average size.
func (s *Store) Stats(ctx context.Context) (storage.Stats, error) {
	head, err := s.head(ctx)
	if err != nil {
		return storage.Stats{}, err
	}
	return storage.Stats{ObjectCount: int64(len(head.Items)) + ptr.Deref(head.RemainingItemCount, 0)}, nil
}
