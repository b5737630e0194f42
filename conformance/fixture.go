// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
)

// fixture is a backend while a clause is judged.
type fixture struct {
	// ctx ends with the clause, and after bound at the latest.
	ctx      context.Context
	bound    time.Duration
	patience time.Duration
	backend  Backend
	// store has its own keys, and goes to cachers. raw is the same with the keys
	// of the clauses.
	store, raw storage.Interface
}

func newFixture(t *testing.T, b Backend) *fixture {
	t.Helper()
	if b.Patience == 0 {
		b.Patience = DefaultPatience
	}
	store := b.Storage
	if b.Writer != nil {
		store = written{store, b.Writer}
	}
	f := &fixture{backend: b, store: store, raw: withKeys(store, b.Key), patience: b.Patience, bound: b.bound()}
	// An etcd client answers a progress request on the watches with the same
	// metadata.
	ctx := metadata.NewOutgoingContext(context.Background(), metadata.Pairs("conformance", t.Name()))
	ctx, cancel := context.WithTimeout(ctx, f.bound)
	t.Cleanup(cancel)
	f.ctx = ctx
	return f
}

// cache starts a cacher over the backend and waits until it serves. The cacher
// is stopped with the test.
func (f *fixture) cache(t *testing.T, changes ...func(*cacher.Config)) cached {
	t.Helper()
	config := cacher.Config{
		Storage:        f.store,
		WatchProgress:  f.backend.progress,
		Versioner:      versioner,
		GroupResource:  Resource(),
		ResourcePrefix: Prefix,
		KeyFunc:        Key,
		GetAttrsFunc:   Attrs,
		NewFunc:        NewPod,
		NewListFunc:    NewPodList,
		Codec:          Codec(),
		// A read that waits in vain fails, it is not passed on to storage.
		FreshnessTimeout: f.patience,
		MaxFallbackLists: -1,
	}
	for _, change := range changes {
		change(&config)
	}
	if key := f.backend.Key; key != nil {
		keyOf := config.KeyFunc
		config.ResourcePrefix = key(config.ResourcePrefix)
		config.KeyFunc = func(object runtime.Object) (string, error) {
			k, err := keyOf(object)
			return own(key)(k), err
		}
	}
	c, err := cacher.New(config)
	if err != nil {
		t.Fatalf("a cacher over the backend can't be made: %v", err)
	}
	t.Cleanup(func() {
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			c.Stop()
		}()
		select {
		case <-stopped:
		case <-time.After(f.patience):
			t.Errorf("the cacher's Stop has not returned after %s: something of the backend does not end with its context", f.patience)
		}
	})
	ctx, cancel := context.WithTimeout(f.ctx, f.patience)
	defer cancel()
	if err := c.Wait(ctx); err != nil {
		t.Fatalf("a cacher over the backend is not ready after %s (%v): %+v", f.patience, err, c.Status().LastError)
	}
	return cached{withKeys(c, f.backend.Key), c}
}

var versioner = storage.APIObjectVersioner{}

// create, update and remove are writes that must succeed. They return the
// object as the store says it has become; that of a removal is the last
// state with the removal's resourceVersion.
func (f *fixture) create(t *testing.T, s storage.Interface, pod *example.Pod) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	if err := s.Create(f.ctx, keyOf(t, pod), pod, out, 0); err != nil {
		t.Fatalf("Create of %s fails: %v", keyOf(t, pod), err)
	}
	return out
}

func (f *fixture) update(t *testing.T, s storage.Interface, key string, change func(*example.Pod)) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	if err := s.GuaranteedUpdate(f.ctx, key, out, false, nil, changing(change), nil); err != nil {
		t.Fatalf("GuaranteedUpdate of %s fails: %v", key, err)
	}
	return out
}

func changing(change func(*example.Pod)) storage.UpdateFunc {
	return storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
		pod := object.(*example.Pod).DeepCopy()
		change(pod)
		return pod, nil
	})
}

func (f *fixture) remove(t *testing.T, s storage.Interface, key string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	if err := s.Delete(f.ctx, key, out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatalf("Delete of %s fails: %v", key, err)
	}
	return out
}

// at is what a LIST asks for; the zero value is everything, consistently.
type at struct {
	rv    uint64
	match metav1.ResourceVersionMatch
	limit int64
	next  string // continue token
}

func exactly(rv uint64) at { return at{rv: rv, match: metav1.ResourceVersionMatchExact} }

func (a at) options() storage.ListOptions {
	opts := storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersionMatch: a.match}
	opts.Predicate.Limit, opts.Predicate.Continue = a.limit, a.next
	if a.rv > 0 {
		opts.ResourceVersion = version(a.rv)
	}
	return opts
}

func (f *fixture) tryList(s storage.Interface, key string, what at) (*example.PodList, error) {
	list := &example.PodList{}
	return list, s.GetList(f.ctx, key, what.options(), list)
}

func (f *fixture) list(t *testing.T, s storage.Interface, key string, what at) *example.PodList {
	t.Helper()
	list, err := f.tryList(s, key, what)
	if err != nil {
		t.Fatalf("LIST of %s with %+v fails: %v", key, what, err)
	}
	return list
}

func (f *fixture) get(t *testing.T, s storage.Interface, key, resourceVersion string) *example.Pod {
	t.Helper()
	pod := &example.Pod{}
	if err := s.Get(f.ctx, key, storage.GetOptions{ResourceVersion: resourceVersion}, pod); err != nil {
		t.Fatalf("GET of %s at resourceVersion %q fails: %v", key, resourceVersion, err)
	}
	return pod
}

func keyOf(t *testing.T, pod *example.Pod) string {
	t.Helper()
	key, err := Key(pod)
	if err != nil {
		t.Fatalf("an object without a key: %v", err)
	}
	return key
}

// rvOf returns the resourceVersion of an object that has one.
func rvOf(t *testing.T, pod *example.Pod) uint64 {
	t.Helper()
	rv, err := versioner.ObjectResourceVersion(pod)
	if err != nil || rv == 0 {
		t.Fatalf("%s has the resourceVersion %q, want a number above 0", pod.Name, pod.ResourceVersion)
	}
	return rv
}

func rvOfList(t *testing.T, list *example.PodList) uint64 {
	t.Helper()
	rv, err := versioner.ParseResourceVersion(list.ResourceVersion)
	if err != nil || rv == 0 {
		t.Fatalf("a list has the resourceVersion %q, want a number above 0", list.ResourceVersion)
	}
	return rv
}

func version(rv uint64) string { return strconv.FormatUint(rv, 10) }
