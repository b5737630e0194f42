// SPDX-License-Identifier: Apache-2.0

// Package memory is a storage.Interface without a database, for objects that a program computes or
// receives. The program writes objects to a Store, and a Cacher over it serves Kubernetes clients:
//
//	store, err := memory.New(memory.Config{...})
//	...
//	err = store.Upsert(ctx, load)              // an object has changed
//	err = store.Remove(ctx, "default", "cpu0") // an object is gone
//	err = store.Replace(ctx, loads)            // all there is
//
// Pass it to an API server with cacher.WithRawStorage(store.RawStorage); see docs/computed.md.
//
// # ResourceVersions
//
// A Store's first resourceVersion is the Unix time in nanoseconds, and each change increments it.
// They are positive 63-bit integers (until 2262), which JavaScript numbers can't hold exactly; in
// JSON they are strings. They increase across restarts unless the clock is set back; see
// Config.After. As in etcd, a watch from 1 starts at the empty Store.
//
// Clients with a version of an earlier process, or of another replica, get a 410 and list again:
// their version is below this Store's first or above its last. This holds until a Store made more
// changes than there are nanoseconds between the two starts: with 1,000 changes a second, a
// difference of one second lasts eleven days. To serve the same clients for longer, start replicas
// further apart, or run one leader and standbys.
package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/mvcc"
)

// DefaultHistory is the default of Config.History.
const DefaultHistory = 10_000

// behind is large because a Cacher may get no processor time during a burst, and must not lose its
// watch, which would end its own.
const behind = 1 << 20

// Config describes the objects of a Store. GroupResource to NewFunc are required, and have the
// meaning of the fields of cacher.Config.
type Config struct {
	// GroupResource is used in errors.
	GroupResource schema.GroupResource
	// ResourcePrefix is the prefix of keys, e.g. "/loads" or "/loads/".
	ResourcePrefix string
	// KeyFunc returns an object's key, including ResourcePrefix. It may only depend on the
	// namespace and name.
	KeyFunc func(runtime.Object) (string, error)
	// GetAttrsFunc returns an object's labels and selectable fields. The Store rejects an object
	// for which it fails.
	GetAttrsFunc func(runtime.Object) (labels.Set, fields.Set, error)
	// NewFunc returns an empty object.
	NewFunc func() runtime.Object

	// Indexers are the indexes for Objects. The Store rejects an object for which one fails.
	Indexers cache.Indexers
	// After is the last resourceVersion of an earlier process, if known. New fails unless the clock
	// is past it. 0 skips this check: if the clock was set back, clients of the earlier process get
	// a 410 until the Store reaches their versions.
	After uint64
	// History is the number of changes kept for watches and lists of earlier versions. It may be
	// short, because a Cacher has its own window and its watch may lag further. 0 means 10,000.
	History int
}

// Store is a storage.Interface, safe for concurrent use. It implements methods of package
// storage/capability, so that a Cacher serves consistent reads. Lists and watches return its own
// objects, which callers must not modify.
type Store struct {
	*core
	// RawStorage is a cacher.RawStorageFunc for the Store's resource and prefix.
	RawStorage decoration.Raw

	config Config
	object reflect.Type
}

// core embeds the methods of storage.Interface.
type core = mvcc.Store

// New returns an empty Store. Its error names every invalid field.
func New(config Config) (*Store, error) {
	return newAt(config, time.Now())
}

func newAt(config Config, now time.Time) (*Store, error) {
	if config.ResourcePrefix != "" && !strings.HasSuffix(config.ResourcePrefix, "/") {
		config.ResourcePrefix += "/"
	}
	config.History = cmp.Or(config.History, DefaultHistory)
	if err := config.validate(now); err != nil {
		return nil, err
	}
	s := &Store{
		core: mvcc.New(mvcc.Config{
			Prefix: config.ResourcePrefix, NewFunc: config.NewFunc, Attributes: config.GetAttrsFunc, Indexers: config.Indexers,
			Start: uint64(now.UnixNano()), History: config.History, Behind: behind,
		}),
		config: config, object: reflect.TypeOf(config.NewFunc()),
	}
	s.RawStorage = decoration.AsRaw(s.open)
	return s, nil
}

func (c Config) validate(now time.Time) error {
	var problems []error
	field := func(bad bool, name string, value any, want string) {
		if bad {
			problems = append(problems, fmt.Errorf("memory.Config.%s is %v: %s", name, value, want))
		}
	}
	const required = "it is required"
	field(c.GroupResource.Resource == "", "GroupResource", fmt.Sprintf("%q", c.GroupResource), "the resource is empty")
	field(!strings.HasPrefix(c.ResourcePrefix, "/") || len(c.ResourcePrefix) < 3 || c.ResourcePrefix != path.Clean(c.ResourcePrefix)+"/", "ResourcePrefix", fmt.Sprintf("%q", c.ResourcePrefix), `want "/" and a name, for example "/loads/"`)
	field(c.KeyFunc == nil, "KeyFunc", "nil", required)
	field(c.GetAttrsFunc == nil, "GetAttrsFunc", "nil", required)
	field(c.NewFunc == nil, "NewFunc", "nil", required)
	field(c.History < 0, "History", c.History, "it is negative")
	field(now.UnixNano() <= 0 || uint64(now.UnixNano()) <= c.After, "After", c.After,
		fmt.Sprintf("the clock, %s, would give resourceVersions from %d on: it was set back", now.Format(time.RFC3339), now.UnixNano()))
	if c.NewFunc != nil {
		object := c.NewFunc()
		_, err := meta.Accessor(object)
		v := reflect.ValueOf(object)
		field(err != nil || v.Kind() != reflect.Pointer || v.IsNil(), "NewFunc", fmt.Sprintf("a function that returns a %T", object), "want a pointer to an empty object with metadata")
		if v.Kind() == reflect.Pointer {
			bad := mvcc.CheckType(v.Type(), v.Type().String(), map[reflect.Type]bool{})
			field(bad != nil, "NewFunc", fmt.Sprintf("a function that returns a %T", object), fmt.Sprint(bad))
		}
	}
	return errors.Join(problems...)
}

// open opens s as the storage under a Cacher.
func (s *Store) open(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
	resource, prefix := r.Config.GroupResource, strings.TrimSuffix(r.ResourcePrefix, "/")+"/"
	if resource != s.config.GroupResource || prefix != s.config.ResourcePrefix {
		return nil, nil, fmt.Errorf("%s at %q: the Store is for %s at %q", resource, prefix, s.config.GroupResource, s.config.ResourcePrefix)
	}
	return s, func() {}, nil
}

// Upsert creates or replaces an object with a copy of obj. If they are equal, nothing changes and
// watches get no event.
//
// obj must be of NewFunc's type and have a name. An unstructured object may only contain types of
// decoded JSON, e.g. int64, not int. New objects get a missing UID or creationTimestamp, and keep
// it. If obj has a resourceVersion, it must be the current one; otherwise the error is a "conflict"
// of k8s.io/apimachinery/pkg/api/errors with the current one.
func (s *Store) Upsert(ctx context.Context, obj runtime.Object) error {
	return s.UpsertFor(ctx, obj, 0)
}

// UpsertFor is Upsert for an object that expires after ttl, unless the program writes it again
// (even unchanged) or a client changes it. 0 means never.
func (s *Store) UpsertFor(ctx context.Context, obj runtime.Object, ttl time.Duration) error {
	key, expected, err := s.key(obj)
	if err == nil {
		err = mvcc.Apply(ctx, s.core, []mvcc.Version{{Key: key, RV: expected, Object: obj}}, false, ttl)
	}
	return s.failed("Upsert", err)
}

// Object returns the current object of a name, or nil. Callers must not modify it.
func (s *Store) Object(namespace, name string) runtime.Object {
	key, _ := s.keyOf(namespace, name) // an invalid key has no object
	return mvcc.Current(s.core, key)
}

// Selection selects the objects that match all set fields.
type Selection struct {
	Labels       labels.Selector
	Fields       fields.Selector // see Config.GetAttrsFunc
	Index, Value string          // the name of one of Config.Indexers, and a value that it returns
}

// Objects returns the selected objects in key order, and the Store's resourceVersion. A Watch from
// it receives all later changes, including clients'. Callers must not modify the objects.
func (s *Store) Objects(of Selection) (objs []runtime.Object, resourceVersion string, err error) {
	found, rv, err := mvcc.Select(s.core, of.Index, of.Value)
	predicate := storage.SelectionPredicate{Label: cmp.Or(of.Labels, labels.Everything()), Field: cmp.Or(of.Fields, fields.Everything()), GetAttrs: s.config.GetAttrsFunc}
	for _, v := range found {
		matches, failed := predicate.Matches(v.Object)
		if err = cmp.Or(err, failed); matches {
			objs = append(objs, v.Object)
		}
	}
	return objs, strconv.FormatUint(rv, 10), s.failed("Objects", err)
}

// Remove deletes an object. If it does not exist, the error is a "not found" of
// k8s.io/apimachinery/pkg/api/errors.
func (s *Store) Remove(ctx context.Context, namespace, name string) error {
	key, err := s.keyOf(namespace, name)
	if err == nil {
		err = s.Delete(ctx, key, nil, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	}
	if storage.IsNotFound(err) {
		err = apierrors.NewNotFound(s.config.GroupResource, name)
	}
	return s.failed("Remove", err)
}

// Replace upserts objs and deletes all other objects. Unchanged objects get no event. The
// comparison takes time linear in all objects, the rest in the changes. Other writes wait, reads
// don't. On error, nothing changed.
func (s *Store) Replace(ctx context.Context, objs []runtime.Object) error {
	wanted := make([]mvcc.Version, len(objs))
	for i, obj := range objs {
		key, expected, err := s.key(obj)
		if err != nil {
			return s.failed("Replace", fmt.Errorf("object %d: %w", i, err))
		}
		wanted[i] = mvcc.Version{Key: key, RV: expected, Object: obj}
	}
	slices.SortFunc(wanted, func(a, b mvcc.Version) int { return strings.Compare(a.Key, b.Key) })
	for i := 1; i < len(wanted); i++ {
		if wanted[i-1].Key == wanted[i].Key {
			return s.failed("Replace", fmt.Errorf("%q is there twice", wanted[i].Key))
		}
	}
	return s.failed("Replace", mvcc.Apply(ctx, s.core, wanted, true, 0))
}

func (s *Store) keyOf(namespace, name string) (string, error) {
	obj := s.config.NewFunc()
	accessor, _ := meta.Accessor(obj)
	accessor.SetNamespace(namespace)
	accessor.SetName(name)
	key, _, err := s.key(obj)
	return key, err
}

// key returns the key and resourceVersion of a valid object.
func (s *Store) key(obj runtime.Object) (key string, rv uint64, err error) {
	if reflect.TypeOf(obj) != s.object || reflect.ValueOf(obj).IsNil() {
		return "", 0, fmt.Errorf("the object is a %T %v, want a %v", obj, obj, s.object)
	}
	accessor, _ := meta.Accessor(obj) // New checked that it has metadata
	if accessor.GetName() == "" {
		return "", 0, fmt.Errorf("an object in namespace %q has no name", accessor.GetNamespace())
	}
	key, err = s.config.KeyFunc(obj)
	if err == nil {
		rv, err = s.Versioner().ObjectResourceVersion(obj)
	}
	// Different namespaces must give different keys, each addressable by a request.
	if problems := content.IsPathSegmentName(accessor.GetNamespace()); err == nil && len(problems) > 0 {
		err = fmt.Errorf("invalid namespace: %v", problems)
	}
	if err == nil && (key != path.Clean(key) || !strings.HasPrefix(key, s.config.ResourcePrefix)) {
		err = fmt.Errorf("invalid key: %q", key)
	}
	if err != nil {
		return "", 0, fmt.Errorf("the key of %s/%s: %w", accessor.GetNamespace(), accessor.GetName(), err)
	}
	return key, rv, nil
}

// RESTOptions returns the options for server.InstallResources. codec is for clients.
func (s *Store) RESTOptions(codec runtime.Codec) generic.RESTOptions {
	return generic.RESTOptions{StorageConfig: (&storagebackend.Config{Codec: codec}).ForResource(s.config.GroupResource), ResourcePrefix: strings.TrimSuffix(s.config.ResourcePrefix, "/"), Decorator: decoration.Decorator(s.open)}
}

// StoreOptions returns the options to complete the resource's genericregistry.Store. Clients of
// scheme can then select objects of kind by the fields of Config.GetAttrsFunc.
func (s *Store) StoreOptions(getter generic.RESTOptionsGetter, scheme *runtime.Scheme, kind schema.GroupVersionKind) (*generic.StoreOptions, error) {
	_, known, err := s.config.GetAttrsFunc(s.config.NewFunc())
	if err == nil {
		err = scheme.AddFieldLabelConversionFunc(kind, func(label, value string) (string, string, error) {
			if !known.Has(label) {
				return "", "", fmt.Errorf("%q is no field of %s for selectors", label, kind.Kind)
			}
			return label, value, nil
		})
	}
	return &generic.StoreOptions{RESTOptions: getter, AttrFunc: s.config.GetAttrsFunc}, err
}

// InProcess implements capability.InProcess.
func (s *Store) InProcess() bool { return true }

func (s *Store) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	if stale := (*storage.StorageError)(nil); errors.As(err, &stale) && storage.IsConflict(stale) {
		err = apierrors.NewConflict(s.config.GroupResource, path.Base(stale.Key), err)
	}
	return fmt.Errorf("%s %s: %w", what, s.config.GroupResource, err)
}
