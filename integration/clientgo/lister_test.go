// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/dynamiclister"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	fleetlisters "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/listers/fleet/v1"
)

// skin is a lister of any type.
type skin struct {
	name       string
	everywhere func(labels.Selector) ([]runtime.Object, error)
	in         func(namespace string, selector labels.Selector) ([]runtime.Object, error)
	get        func(namespace, name string) (runtime.Object, error)
	// resource is what its NotFound errors name.
	resource string
}

// objectsOf gives a lister's answer as objects.
func objectsOf[T runtime.Object](items []T, err error) ([]runtime.Object, error) {
	var out []runtime.Object
	for _, item := range items {
		out = append(out, item)
	}
	return out, err
}

// typedSkin is what lister-gen generates: over HTTPS the example's, in process,
// where objects are internal ones, what the generated ones are made of.
func typedSkin(via way, indexer cache.Indexer) skin {
	if via.inProcess {
		l := listers.New[*fleet.Device](indexer, fleet.Resource("devices"))
		in := func(namespace string) listers.ResourceIndexer[*fleet.Device] {
			return listers.NewNamespaced(l, namespace)
		}
		return skin{"typed",
			func(s labels.Selector) ([]runtime.Object, error) { return objectsOf(l.List(s)) },
			func(ns string, s labels.Selector) ([]runtime.Object, error) { return objectsOf(in(ns).List(s)) },
			func(ns, name string) (runtime.Object, error) { return in(ns).Get(name) },
			"devices.fleet.example.com",
		}
	}
	l := fleetlisters.NewDeviceLister(indexer)
	return skin{"typed",
		func(s labels.Selector) ([]runtime.Object, error) { return objectsOf(l.List(s)) },
		func(ns string, s labels.Selector) ([]runtime.Object, error) { return objectsOf(l.Devices(ns).List(s)) },
		func(ns, name string) (runtime.Object, error) { return l.Devices(ns).Get(name) },
		"device.fleet.example.com",
	}
}

func genericSkin(indexer cache.Indexer) skin {
	l := cache.NewGenericLister(indexer, fleet.Resource("devices"))
	return skin{"generic",
		l.List,
		func(ns string, s labels.Selector) ([]runtime.Object, error) { return l.ByNamespace(ns).List(s) },
		func(ns, name string) (runtime.Object, error) { return l.ByNamespace(ns).Get(name) },
		"devices.fleet.example.com",
	}
}

func dynamicSkin(indexer cache.Indexer) skin {
	l := dynamiclister.New(indexer, fleetv1.SchemeGroupVersion.WithResource("devices"))
	return skin{"dynamic",
		func(s labels.Selector) ([]runtime.Object, error) { return objectsOf(l.List(s)) },
		func(ns string, s labels.Selector) ([]runtime.Object, error) {
			return objectsOf(l.Namespace(ns).List(s))
		},
		func(ns, name string) (runtime.Object, error) { return l.Namespace(ns).Get(name) },
		"devices.fleet.example.com",
	}
}

// toUnstructured is a cache.TransformFunc.
func toUnstructured(obj any) (any, error) {
	v1 := &fleetv1.Device{}
	if err := scheme.Convert(obj, v1, nil); err != nil {
		return nil, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(v1)
	if err != nil {
		return nil, err
	}
	u := dynamicDevice()
	maps.Copy(u.Object, content)
	u.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("Device"))
	return u, nil
}

// dynamicDevice is an empty device as the dynamic client has it.
func dynamicDevice() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("Device"))
	return u
}

// unstructuredFeed lists and watches with the dynamic client.
func unstructuredFeed(t *testing.T, w *world, change tweak) *recorder {
	t.Helper()
	of := w.dynamic(t).Resource(fleetv1.SchemeGroupVersion.WithResource("devices"))
	client := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			change(&options)
			return of.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			change(&options)
			return of.Watch(ctx, options)
		},
	}
	return newRecorder(func() lister { return client })
}

// listed is two namespaces that listers look at, of which they see only what is
// labelled with the first one's name.
type listed struct {
	*feed
	second devices
	skins  []skin
	away   []absent
}

func newListed(t *testing.T, w *world, via way) *listed {
	t.Helper()
	l := &listed{feed: newFeed(t, w, via), second: w.writer(t, w.newNamespace(t))}
	mine := func(o *metav1.ListOptions) { o.LabelSelector = "lister=" + l.namespace }
	indexer := func(options ...cache.StoreOption) cache.Indexer {
		return cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, options...)
	}
	typed, untyped := indexer(), indexer()
	l.source = via.listerWatcher(t, w, metav1.NamespaceAll, mine)
	l.away = append(l.away, absent{l.source, l.reflect(t, typed), via.example()})
	other := &feed{via: via, source: via.listerWatcher(t, w, metav1.NamespaceAll, mine)}
	if via.inProcess {
		untyped = indexer(cache.WithTransformer(toUnstructured))
		l.away = append(l.away, absent{other.source, other.reflect(t, untyped), via.example()})
	} else {
		source := unstructuredFeed(t, w, mine)
		r := cache.NewReflectorWithOptions(source, dynamicDevice(), untyped, cache.ReflectorOptions{Backoff: quickRetries()})
		runs(t, r.RunWithContext)
		l.away = append(l.away, absent{source, r, dynamicDevice()})
	}
	l.skins = []skin{typedSkin(via, typed), genericSkin(typed), dynamicSkin(untyped)}
	return l
}

// selectors are what the listers are asked.
var selectors = []string{"", "zone=hh", "zone!=hh", "zone in (hh,b)", "zone", "!zone", "zone=nowhere"}

// requireTruth waits until a lister says of each selector and namespace what etcd
// says.
func (l *listed) requireTruth(t *testing.T, s skin) {
	t.Helper()
	records := l.world.stored(t, l.namespace, l.second.namespace)
	seen := map[string]labels.Set{} // those that the listers see
	for key, record := range records {
		d := &fleet.Device{}
		require.NoError(t, runtime.DecodeInto(storageCodec, record.value, d))
		if d.Labels["lister"] == l.namespace {
			seen[key] = d.Labels
		}
	}
	eventually(t, "the lister says something else than etcd", func(context.Context) error {
		for _, text := range selectors {
			selector, err := labels.Parse(text)
			require.NoError(t, err)
			if err := l.compare(t, s, selector, seen); err != nil {
				return fmt.Errorf("selector %q: %w", text, err)
			}
		}
		for key := range seen {
			namespace, name, _ := strings.Cut(key, "/")
			obj, err := s.get(namespace, name)
			if err != nil {
				return err
			}
			if err := same(obj, records[key]); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
		return nil
	})
	none, err := s.everywhere(labels.Nothing())
	require.NoError(t, err)
	require.Empty(t, none)
}

// compare compares one selector's answers, of all namespaces and of each.
func (l *listed) compare(t *testing.T, s skin, selector labels.Selector, seen map[string]labels.Set) error {
	t.Helper()
	for _, namespace := range []string{metav1.NamespaceAll, l.namespace, l.second.namespace} {
		want := []string{}
		for key, set := range seen {
			in, _, _ := strings.Cut(key, "/")
			if selector.Matches(set) && (namespace == metav1.NamespaceAll || namespace == in) {
				want = append(want, key)
			}
		}
		got, err := s.in(namespace, selector)
		if namespace == metav1.NamespaceAll {
			got, err = s.everywhere(selector)
		}
		if err != nil {
			return err
		}
		keys := []string{}
		for _, obj := range got {
			key, err := cache.MetaNamespaceKeyFunc(obj)
			require.NoError(t, err)
			keys = append(keys, key)
		}
		slices.Sort(want)
		slices.Sort(keys)
		if !slices.Equal(want, keys) {
			return fmt.Errorf("in namespace %q it lists %v, etcd has %v", namespace, keys, want)
		}
	}
	return nil
}

// requireNotFound wants an object not to be found, by the error that API servers
// give for it.
func (l *listed) requireNotFound(t *testing.T, s skin, namespace, name string) {
	t.Helper()
	_, err := s.get(namespace, name)
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	require.EqualError(t, err, fmt.Sprintf("%s %q not found", s.resource, name))
}

// everySkin runs a subtest for each lister.
func (l *listed) everySkin(t *testing.T, what string, holds func(t *testing.T, s skin)) {
	t.Helper()
	for _, s := range l.skins {
		t.Run(s.name+" lister: "+what, func(t *testing.T) { holds(t, s) })
	}
}

func TestListers(t *testing.T) {
	bothWays(t, func(t *testing.T, w *world, via way) {
		l := newListed(t, w, via)
		mine := func(zoneOf any) map[string]any { return map[string]any{"lister": l.namespace, zone: zoneOf} }
		second := &feed{devices: l.second, world: w, via: via}
		l.createMany(t, "x", 3)
		l.label(t, "x-000", mine("hh"))
		l.label(t, "x-001", mine("b"))
		l.label(t, "x-002", mine(nil))
		for _, name := range []string{"x-000", "y"} {
			l.second.create(t, name)
			second.label(t, name, mine("hh"))
		}
		l.second.create(t, "not-mine")
		l.everySkin(t, "by namespace, by selector", l.requireTruth)
		l.everySkin(t, "NotFound", func(t *testing.T, s skin) {
			l.requireNotFound(t, s, l.namespace, "y")
			l.requireNotFound(t, s, l.namespace, "nobody")
			l.requireNotFound(t, s, "nowhere", "x-000")
			l.requireNotFound(t, s, l.second.namespace, "not-mine")
		})
		l.label(t, "x-000", map[string]any{zone: "b"})
		l.label(t, "x-001", map[string]any{zone: nil})
		second.label(t, "y", map[string]any{"lister": nil})
		l.delete(t, "x-002")
		l.everySkin(t, "after updates and deletions", func(t *testing.T, s skin) {
			l.requireTruth(t, s)
			l.requireNotFound(t, s, l.second.namespace, "y")
			l.requireNotFound(t, s, l.namespace, "x-002")
		})
		relist(t, w, func() {
			l.delete(t, "x-000")
			l.label(t, "x-001", map[string]any{"lister": nil})
			second.label(t, "not-mine", mine("b"))
			l.create(t, "late")
			l.label(t, "late", mine("hh"))
		}, l.away...)
		l.everySkin(t, "after a relist", func(t *testing.T, s skin) {
			l.requireTruth(t, s)
			l.requireNotFound(t, s, l.namespace, "x-000")
			l.requireNotFound(t, s, l.namespace, "x-001")
		})
	})
}

func TestListWithoutIndex(t *testing.T) {
	promises(t, []clause{
		{"a GenericLister gets by key", func(t *testing.T, f *feed) {
			indexer := cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.Indexers{})
			x := f.create(t, "x")
			reach(t, f.reflect(t, indexer), x)
			l := cache.NewGenericLister(indexer, fleet.Resource("devices"))
			obj, err := l.Get(f.key("x"))
			require.NoError(t, err)
			require.Equal(t, look(t, x), look(t, obj))
			_, err = l.Get("x")
			require.True(t, apierrors.IsNotFound(err), "%v", err)
		}},
		{"ListAllByNamespace without an index by namespace looks at all", func(t *testing.T, f *feed) {
			f.source = f.via.listerWatcher(t, f.world, metav1.NamespaceAll, func(o *metav1.ListOptions) { o.LabelSelector = zone })
			indexer := cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.Indexers{})
			f.reflect(t, indexer)
			elsewhere := feedOf(t, f.world, f.via, f.world.newNamespace(t))
			f.create(t, "x")
			f.label(t, "x", map[string]any{zone: "b"})
			f.create(t, "y")
			hh := f.label(t, "y", map[string]any{zone: "hh"})
			elsewhere.create(t, "z")
			elsewhere.label(t, "z", map[string]any{zone: "hh"})
			f.world.requireEqual(t, indexer, f.namespace, elsewhere.namespace)
			var found []any
			selector := labels.SelectorFromSet(labels.Set{zone: "hh"})
			require.NoError(t, cache.ListAllByNamespace(indexer, f.namespace, selector, func(obj any) { found = append(found, obj) }))
			require.Len(t, found, 1)
			require.Equal(t, look(t, hh), look(t, found[0]))
		}},
	})
}
