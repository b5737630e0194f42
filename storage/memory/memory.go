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
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

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
	return &Store{
		core: mvcc.New(mvcc.Config{
			Prefix: config.ResourcePrefix, NewFunc: config.NewFunc, Attributes: config.GetAttrsFunc,
			Start: uint64(now.UnixNano()), History: config.History, Behind: behind,
		}),
		config: config, object: reflect.TypeOf(config.NewFunc()),
	}, nil
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
	}
	return errors.Join(problems...)
}

// serves fails for a resource or prefix that is not the Store's.
func (s *Store) serves(resource schema.GroupResource, resourcePrefix string) error {
	prefix := strings.TrimSuffix(resourcePrefix, "/") + "/"
	if resource == s.config.GroupResource && prefix == s.config.ResourcePrefix {
		return nil
	}
	return fmt.Errorf("%s at %q: the Store is for %s at %q", resource, prefix, s.config.GroupResource, s.config.ResourcePrefix)
}

// Upsert creates or replaces an object. The Store keeps a copy: the caller may go on
// writing to obj. If the object is equal to the current one, nothing changes and no
// watch gets an event.
//
// The object must be of NewFunc's type and have a name, and no resourceVersion: the Store
// gives it one. An unstructured object has the types of decoded JSON only: int64, not int.
// Its UID and creationTimestamp are the caller's.
func (s *Store) Upsert(ctx context.Context, obj runtime.Object) error {
	key, err := s.key(obj)
	if err == nil {
		err = mvcc.Apply(ctx, s.core, []mvcc.Version{{Key: key, Object: obj}}, false)
	}
	return s.failed("Upsert", err)
}

// Remove deletes an object. If there is none, the error is a "not found" of
// k8s.io/apimachinery/pkg/api/errors.
func (s *Store) Remove(ctx context.Context, namespace, name string) error {
	obj := s.config.NewFunc()
	accessor, _ := meta.Accessor(obj)
	accessor.SetNamespace(namespace)
	accessor.SetName(name)
	key, err := s.key(obj)
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
		key, err := s.key(obj)
		if err != nil {
			return s.failed("Replace", fmt.Errorf("object %d: %w", i, err))
		}
		wanted[i] = mvcc.Version{Key: key, Object: obj}
	}
	slices.SortFunc(wanted, func(a, b mvcc.Version) int { return strings.Compare(a.Key, b.Key) })
	for i := 1; i < len(wanted); i++ {
		if wanted[i-1].Key == wanted[i].Key {
			return s.failed("Replace", fmt.Errorf("%q is there twice", wanted[i].Key))
		}
	}
	return s.failed("Replace", mvcc.Apply(ctx, s.core, wanted, true))
}

// key returns the key of an object that can be stored.
func (s *Store) key(obj runtime.Object) (string, error) {
	if reflect.TypeOf(obj) != s.object || reflect.ValueOf(obj).IsNil() {
		return "", fmt.Errorf("the object is a %T %v, want a %v", obj, obj, s.object)
	}
	accessor, _ := meta.Accessor(obj) // New has seen that it has metadata
	switch {
	case accessor.GetName() == "":
		return "", fmt.Errorf("an object in namespace %q has no name", accessor.GetNamespace())
	case accessor.GetResourceVersion() != "":
		return "", fmt.Errorf("%s/%s has the resourceVersion %q: the Store gives objects theirs", accessor.GetNamespace(), accessor.GetName(), accessor.GetResourceVersion())
	}
	key, err := s.config.KeyFunc(obj)
	// Of two namespaces, two keys; and each key is one that a request may have.
	if problems := content.IsPathSegmentName(accessor.GetNamespace()); err == nil && len(problems) > 0 {
		err = fmt.Errorf("invalid namespace: %v", problems)
	}
	if err == nil && (key != path.Clean(key) || !strings.HasPrefix(key, s.config.ResourcePrefix)) {
		err = fmt.Errorf("invalid key: %q", key)
	}
	if err != nil {
		return "", fmt.Errorf("the key of %s/%s: %w", accessor.GetNamespace(), accessor.GetName(), err)
	}
	return key, nil
}

func (s *Store) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, s.config.GroupResource, err)
}
