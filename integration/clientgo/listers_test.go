// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	fleetlisters "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/listers/fleet/v1"
)

// kindOfLister is a lister of any type.
type kindOfLister struct {
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

// typedLister is what lister-gen generates: over HTTPS the example's, in process,
// where objects are internal ones, what the generated ones are made of.
func typedLister(via transport, indexer cache.Indexer) kindOfLister {
	if via.inProcess {
		l := listers.New[*fleet.Device](indexer, fleet.Resource("devices"))
		in := func(namespace string) listers.ResourceIndexer[*fleet.Device] {
			return listers.NewNamespaced(l, namespace)
		}
		return kindOfLister{"typed",
			func(s labels.Selector) ([]runtime.Object, error) { return objectsOf(l.List(s)) },
			func(ns string, s labels.Selector) ([]runtime.Object, error) { return objectsOf(in(ns).List(s)) },
			func(ns, name string) (runtime.Object, error) { return in(ns).Get(name) },
			"devices.fleet.example.com",
		}
	}
	l := fleetlisters.NewDeviceLister(indexer)
	return kindOfLister{"typed",
		func(s labels.Selector) ([]runtime.Object, error) { return objectsOf(l.List(s)) },
		func(ns string, s labels.Selector) ([]runtime.Object, error) { return objectsOf(l.Devices(ns).List(s)) },
		func(ns, name string) (runtime.Object, error) { return l.Devices(ns).Get(name) },
		"device.fleet.example.com",
	}
}

func genericLister(indexer cache.Indexer) kindOfLister {
	l := cache.NewGenericLister(indexer, fleet.Resource("devices"))
	return kindOfLister{"generic",
		l.List,
		func(ns string, s labels.Selector) ([]runtime.Object, error) { return l.ByNamespace(ns).List(s) },
		func(ns, name string) (runtime.Object, error) { return l.ByNamespace(ns).Get(name) },
		"devices.fleet.example.com",
	}
}

// requireNotFound wants an object not to be found, by the error that API servers
// give for it.
func (l kindOfLister) requireNotFound(t *testing.T, namespace, name string) {
	t.Helper()
	_, err := l.get(namespace, name)
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	require.EqualError(t, err, fmt.Sprintf("%s %q not found", l.resource, name))
}

// requireLists wants the lister to list exactly those of the devices in etcd that
// the selector selects, in one namespace and in all that the indexer has.
func (l kindOfLister) requireLists(t *testing.T, namespace, selector string, records map[string]record) {
	t.Helper()
	parsed, err := labels.Parse(selector)
	require.NoError(t, err)
	want := []string{}
	for key, record := range records {
		d := &fleet.Device{}
		require.NoError(t, runtime.DecodeInto(storageCodec, record.value, d))
		if parsed.Matches(labels.Set(d.Labels)) {
			want = append(want, key)
		}
	}
	in, err := l.in(namespace, parsed)
	require.NoError(t, err)
	all, err := l.everywhere(parsed)
	require.NoError(t, err)
	for _, objects := range [][]runtime.Object{in, all} {
		got := []string{}
		for _, obj := range objects {
			key, err := cache.MetaNamespaceKeyFunc(obj)
			require.NoError(t, err)
			got = append(got, key)
		}
		require.ElementsMatch(t, want, got, "selector %q", selector)
	}
}
