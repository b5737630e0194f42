// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/minors"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A GET at a malformed version is refused: from Kubernetes 1.38 with a 422, before with a 400.
func TestGetAtAMalformedVersion(t *testing.T) {
	c := start(t, onePod())
	_, malformed := storage.APIObjectVersioner{}.ParseResourceVersion("x")
	err := c.Get(testContext(t), "/pods/a/one", storage.GetOptions{ResourceVersion: "x"}, &example.Pod{})
	require.EqualError(t, err, minors.MalformedVersion(malformed).Error())
}

// byValue is a runtime.Object that is no pointer.
type byValue struct{ example.Pod }

func (byValue) DeepCopyObject() runtime.Object   { return byValue{} }
func (byValue) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// interfaceList is a list of anything, arrayList one of which the items are no slice.
type (
	interfaceList struct {
		metav1.TypeMeta
		metav1.ListMeta
		Items []runtime.Object
	}
	arrayList struct {
		metav1.TypeMeta
		metav1.ListMeta
		Items [3]example.Pod
	}
)

func (l *interfaceList) DeepCopyObject() runtime.Object { return &interfaceList{} }
func (l *arrayList) DeepCopyObject() runtime.Object     { return &arrayList{} }

// A read into another type is refused by an error that names it, never by a panic.
func TestReadsIntoWhatDoesNotFit(t *testing.T) {
	c := start(t, newStore(poddata.Pod("a/one")))
	for _, into := range []struct{ get, list runtime.Object }{
		{nil, nil}, {byValue{}, byValue{}}, {(*example.Pod)(nil), (*example.PodList)(nil)}, {&interfaceList{}, &interfaceList{}},
		{&arrayList{}, &arrayList{}}, {&example.PodList{}, &example.Pod{}}, {&example.PodList{}, &metav1.PartialObjectMetadataList{}},
	} {
		for _, rv := range []string{"", "0"} {
			get := c.Get(testContext(t), "/pods/a/one", storage.GetOptions{ResourceVersion: rv}, into.get)
			list := c.GetList(testContext(t), "/pods/", everything(rv), into.list)
			assert.Error(t, get, "%T at %q", into.get, rv)
			assert.Error(t, list, "%T at %q", into.list, rv)
			if _, another := into.list.(*metav1.PartialObjectMetadataList); another {
				assert.ErrorContains(t, get, "PodList", "the error names the type")
				assert.ErrorContains(t, list, "PartialObjectMetadata", "the error names the type")
			}
		}
	}
}

// The top level of an object that a read returns is the caller's own, and after a consistent
// GET all of it: who reads before writing changes what was read.
func TestConsistentGetIsPrivate(t *testing.T) {
	c := start(t, newStore(poddata.Pod("a/one", "x=y")))
	want := poddata.Pod("a/one", "x=y")
	want.ResourceVersion = "2"
	for range 2 {
		for _, rv := range []string{"", "0", "2"} {
			got := &example.Pod{}
			require.NoError(t, c.Get(testContext(t), "/pods/a/one", storage.GetOptions{ResourceVersion: rv}, got))
			pods := expectList(t, c, "/pods/", rv, "a/one@2")
			for _, pod := range []*example.Pod{got, &pods.Items[0]} {
				require.Equal(t, want, pod, "at %q", rv)
				if rv == "" && pod == got {
					pod.Labels["x"] = "z"
				}
				pod.Name, pod.Namespace, pod.ResourceVersion, pod.Labels = "other", "other", "9", nil
			}
		}
	}
}

// anyVersion is a storage that does not compare the resourceVersion of a GET with its
// own, as some do.
type anyVersion struct{ *memstore.Store }

func (s anyVersion) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	opts.ResourceVersion = ""
	return s.Store.Get(ctx, key, opts, into)
}

// Regression 151: a GET that has waited in vain for a version gets no older object,
// whatever storage makes of versions; and the object once storage has the version.
func TestGetAtAVersionToCome(t *testing.T) {
	inBubble(t, onePod, func(t *testing.T, store *memstore.Store, _ *cacher.Cacher) {
		c := start(t, anyVersion{store})
		defer c.Stop()
		got := goGet(t.Context(), c, "/pods/a/one", "9")
		<-got.done
		assert.True(t, storage.IsTooLargeResourceVersion(got.err), "got %q, %v", got.got, got.err)
		release := store.Hold() // the cache stays as it is
		rv := put(store, poddata.Pod("a/one", "x=y"))
		expectRead(t, after(goGet(t.Context(), c, "/pods/a/one", fmt.Sprint(rv))), fmt.Sprintf("a/one@%d", rv))
		release()
	})
}

// keysAsked notes what the storage is asked the versions of.
type keysAsked struct {
	*memstore.Store
	mu   sync.Mutex
	keys [][]string
}

func (a *keysAsked) KeyVersions(ctx context.Context, keys []string) ([]uint64, uint64, error) {
	a.mu.Lock()
	a.keys = append(a.keys, append([]string(nil), keys...))
	a.mu.Unlock()
	return a.Store.KeyVersions(ctx, keys)
}

// GETs at once share their requests, of the same object or not, and each asks
// for a key once. Requests stay small.
func TestGetsShareTheirRequests(t *testing.T) {
	for _, tc := range []struct{ objects, gets, most int }{{1, 64, 1}, {64, 64, 64}, {7, 64, 7}, {300, 300, 100}} {
		t.Run(fmt.Sprint(tc.gets, " GETs of ", tc.objects), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				for i := range tc.objects {
					put(store, poddata.Pod(fmt.Sprintf("a/p%d", i)))
				}
				a := &keysAsked{Store: store}
				c := start(t, a)
				defer c.Stop()
				store.Touch() // a version that the cache does not know of
				open := store.Gate("keyversions")
				var reads []*reading
				for i := range tc.gets {
					reads = append(reads, goGet(t.Context(), c, fmt.Sprintf("/pods/a/p%d", i%tc.objects), ""))
					if i == 0 {
						synctest.Wait()
					}
				}
				synctest.Wait()
				open()
				for i, r := range reads {
					expectRead(t, after(r), fmt.Sprintf("a/p%d@%d", i%tc.objects, i%tc.objects+2))
				}
				assert.Equal(t, 1, store.Requests()["get"]+store.Requests()["version"], "other requests than the one at the start")
				require.Len(t, a.keys, 2, "the requests that were sent")
				require.Len(t, a.keys[0], 1, "the keys of the first request")
				assert.Contains(t, []int{min(tc.most, tc.gets-1), tc.most - 1}, len(a.keys[1]), "the keys of the second request")
			})
		})
	}
}

// lying tells versions as the test has it.
type lying struct {
	*memstore.Store
	lie atomic.Pointer[func(versions []uint64, current uint64) ([]uint64, uint64, error)]
}

func (l *lying) KeyVersions(ctx context.Context, keys []string) ([]uint64, uint64, error) {
	versions, current, err := l.Store.KeyVersions(ctx, keys)
	if lie := l.lie.Load(); lie != nil && err == nil {
		return (*lie)(versions, current)
	}
	return versions, current, err
}

// An answer that can't be, or none at all, makes a GET one of storage's. If the
// cache can't have what it has it is compared with storage, once; it passes, and
// is trusted again.
func TestGetWhereVersionsAreOdd(t *testing.T) {
	type versions = []uint64
	for name, tc := range map[string]struct {
		lie     func(versions, uint64) (versions, uint64, error)
		suspect bool
	}{
		"too few":           {func(versions, uint64) (versions, uint64, error) { return nil, 99, nil }, false},
		"too many":          {func(v versions, c uint64) (versions, uint64, error) { return append(v, 7), c, nil }, false},
		"an error":          {func(versions, uint64) (versions, uint64, error) { return nil, 0, errors.New("no leader") }, false},
		"below the cache's": {func(_ versions, c uint64) (versions, uint64, error) { return versions{2}, c, nil }, true},
		"gone":              {func(_ versions, c uint64) (versions, uint64, error) { return versions{0}, c, nil }, true},
		"to come":           {func(_ versions, c uint64) (versions, uint64, error) { return versions{c + 9}, c + 9, nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				meters, metric := metered(t)
				store := &lying{Store: newStore(poddata.Pod("a/zero"), poddata.Pod("a/one"))}
				c := start(t, store, meters)
				defer c.Stop()
				store.lie.Store(&tc.lie)
				for round := 1; round <= 5; round++ {
					expectRead(t, after(goGet(t.Context(), c, "/pods/a/one", "")), "a/one@3")
					assert.Equal(t, round, store.Requests()["get"], "how often storage was read")
					synctest.Wait()
				}
				assert.Equal(t, map[bool]float64{true: 1}[tc.suspect], metric(`consistency_checks_total{result="passed"}`), "comparisons")
				lists := store.Requests()["list"]
				expectList(t, c, "/pods/", "", "a/one a/zero@3")
				assert.Equal(t, lists, store.Requests()["list"], "the cache is not trusted")
				assert.EqualValues(t, 1, metric("relists_total"), "how often storage was listed")
			})
		})
	}
}
