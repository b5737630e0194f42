// SPDX-License-Identifier: Apache-2.0

// Package memory is a storage.Interface without a database, for objects that a program
// computes or receives. The program writes objects; a Cacher over the Store serves
// them, with everything that clients of a Kubernetes API expect:
//
//	store, err := memory.New(memory.Config{...})
//	...
//	err = store.Upsert(ctx, load)              // an object has changed
//	err = store.Remove(ctx, "default", "cpu0") // an object is gone
//	err = store.Replace(ctx, loads)            // all there is
//
// An API server gets the Store by cacher.WithRawStorage(store.RawStorage). docs/computed.md
// has the rest of such a server.
//
// # ResourceVersions
//
// A Store begins with the nanoseconds since 1970 as its resourceVersion, and adds one for
// each change. So resourceVersions are positive 63-bit integers (until 2262), which
// JavaScript's numbers can't hold exactly; in JSON they are strings. They rise over
// restarts of the process, unless the clock was set back; see Config.After. A watch from 1
// is one of the empty Store, as in etcd: no process gives that version to anything else.
//
// A client that comes with a version of an earlier process gets a 410 and lists again.
// So does a client of another replica, as its version is below this Store's first or
// above its last one. That holds until a Store has made more changes than nanoseconds
// have passed between the starts of the two: with 1,000 changes a second, a distance of
// one second lasts for eleven days. Replicas that are to serve the same clients
// for longer should start apart, or be one leader and standbys.
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

// DefaultHistory is the number of changes that a Store keeps if Config.History is 0.
const DefaultHistory = 10_000

// behind is how many changes a watch of the Store may be late: a burst takes the processor
// from the Cacher that reads them, and a Cacher that lost its watch would end all of its own.
const behind = 1 << 20

// Config describes the objects of a Store. The fields down to NewFunc are those of
// cacher.Config, with the same meaning, and are required.
type Config struct {
	// GroupResource names the resource in errors.
	GroupResource schema.GroupResource
	// ResourcePrefix is the key prefix of the resource's objects, "/loads" or "/loads/".
	ResourcePrefix string
	// KeyFunc returns an object's storage key, ResourcePrefix included. It may depend on
	// the object's namespace and name only.
	KeyFunc func(runtime.Object) (string, error)
	// GetAttrsFunc returns an object's labels and its selectable fields. An object that
	// it fails for is refused.
	GetAttrsFunc func(runtime.Object) (labels.Set, fields.Set, error)
	// NewFunc returns an empty object.
	NewFunc func() runtime.Object

	// Indexers are what Objects can read by. An object that one fails for is refused.
	Indexers cache.Indexers
	// After is a resourceVersion that clients may have of an earlier process, for a
	// program that keeps the last one. New fails if the clock was set back so far
	// that the Store would not begin above it. 0: the clock is trusted. If it was set
	// back, clients of the earlier process get a 410 all the same, until the Store has
	// reached their versions.
	After uint64
	// History is the number of changes that the Store keeps for watches and lists of
	// earlier versions. It need not be long: a Cacher has a window of its own, and
	// its watch of the Store may fall behind further. 0: 10,000.
	History int
}

// Store is a storage.Interface with methods of package storage/capability: consistent reads
// are served from the Cacher over it. Lists and watches of a Store return its own objects,
// which must not be written to.
//
// All methods are safe for concurrent use.
type Store struct {
	*core
	// RawStorage is a cacher.RawStorageFunc, for the resource and prefix of the Store.
	RawStorage decoration.Raw

	config Config
	object reflect.Type
}

// core has the methods of storage.Interface.
type core = mvcc.Store

// New returns an empty Store. An error names every invalid field.
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

// open opens s as the storage below a Cacher.
func (s *Store) open(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
	resource, prefix := r.Config.GroupResource, strings.TrimSuffix(r.ResourcePrefix, "/")+"/"
	if resource != s.config.GroupResource || prefix != s.config.ResourcePrefix {
		return nil, nil, fmt.Errorf("%s at %q: the Store is for %s at %q", resource, prefix, s.config.GroupResource, s.config.ResourcePrefix)
	}
	return s, func() {}, nil
}

// Upsert creates or replaces an object. The Store keeps a copy: the caller may go on
// writing to obj. If the object is equal to the current one, nothing changes and no
// watch gets an event.
//
// The object must be of NewFunc's type and have a name. An unstructured object has the types
// of decoded JSON only: int64, not int. A new object without a UID or creationTimestamp gets
// one, and keeps it for as long as it exists. The Store gives the resourceVersion: an object
// that has one replaces only that version; otherwise the error is a "conflict" of
// k8s.io/apimachinery/pkg/api/errors with the current one.
func (s *Store) Upsert(ctx context.Context, obj runtime.Object) error {
	return s.UpsertFor(ctx, obj, 0)
}

// UpsertFor is Upsert for an object that is removed after ttl, unless the program writes it
// again, an equal one too, or a client changes it. 0: the object stays.
func (s *Store) UpsertFor(ctx context.Context, obj runtime.Object, ttl time.Duration) error {
	key, expected, err := s.key(obj)
	if err == nil {
		err = mvcc.Apply(ctx, s.core, []mvcc.Version{{Key: key, RV: expected, Object: obj}}, false, ttl)
	}
	return s.failed("Upsert", err)
}

// Object returns the current object of a name, which must not be written to, or nil.
func (s *Store) Object(namespace, name string) runtime.Object {
	key, _ := s.keyOf(namespace, name) // an object that is not valid is not there
	return mvcc.Current(s.core, key)
}

// Selection selects objects by all of its fields that are set.
type Selection struct {
	Labels       labels.Selector
	Fields       fields.Selector // of what Config.GetAttrsFunc returns
	Index, Value string          // one of Config.Indexers, and what it returns
}

// Objects returns the current objects of a selection in the order of keys, which must not be
// written to, and the Store's resourceVersion: Watch from it has all changes, clients' too.
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

// Remove deletes an object. If there is none, the error is a "not found" of
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

// Replace makes objs all the objects that there are, as by one Upsert for each, and
// deletes the others. Only differences become events: nothing happens to an object that
// is equal to the current one. Comparing takes time in proportion to all objects, the
// rest in proportion to the changes. Reads go on meanwhile, other writes wait.
//
// If there is an error, nothing has changed.
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

// key returns the key of an object that can be stored, and the version that it has.
func (s *Store) key(obj runtime.Object) (key string, rv uint64, err error) {
	if reflect.TypeOf(obj) != s.object || reflect.ValueOf(obj).IsNil() {
		return "", 0, fmt.Errorf("the object is a %T %v, want a %v", obj, obj, s.object)
	}
	accessor, _ := meta.Accessor(obj) // New has seen that it has metadata
	if accessor.GetName() == "" {
		return "", 0, fmt.Errorf("an object in namespace %q has no name", accessor.GetNamespace())
	}
	key, err = s.config.KeyFunc(obj)
	if err == nil {
		rv, err = s.Versioner().ObjectResourceVersion(obj)
	}
	// Of two namespaces, two keys; and each key is one that a request may have.
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

// RESTOptions returns what server.InstallResources needs. The codec is for clients.
func (s *Store) RESTOptions(codec runtime.Codec) generic.RESTOptions {
	return generic.RESTOptions{StorageConfig: (&storagebackend.Config{Codec: codec}).ForResource(s.config.GroupResource), ResourcePrefix: strings.TrimSuffix(s.config.ResourcePrefix, "/"), Decorator: decoration.Decorator(s.open)}
}

// StoreOptions returns the options to complete the resource's genericregistry.Store with. It
// lets clients of scheme select objects of a kind by the fields of Config.GetAttrsFunc.
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
