// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// errorClass is what callers tell errors apart by.
func errorClass(err error) string {
	switch {
	case err == nil:
		return "none"
	case strings.Contains(err.Error(), "invalid key"), strings.Contains(err.Error(), "empty key"):
		return "bad key"
	case storage.IsNotFound(err):
		return "not found"
	case storage.IsTooLargeResourceVersion(err):
		return "too large"
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return "expired"
	case apierrors.IsBadRequest(err):
		return "bad request"
	case apierrors.IsTooManyRequests(err):
		return "too many requests"
	}
	return "other"
}

// A GET answers from the cache, without a read of storage, and says of what it
// can't answer what storage says.
func TestGet(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one"), poddata.Pod("a/two")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		before := store.Requests()["get"]
		for _, tc := range []struct {
			key, rv string
			ignore  bool
			want    string
			class   string
		}{
			{"/pods/a/one", "", false, "a/one@2", "none"},
			{"/pods/a/one", "0", false, "a/one@2", "none"},
			{"/pods/a/two", "2", false, "a/two@3", "none"}, // not older than
			{"/pods/a/two", "3", false, "a/two@3", "none"},
			{"/pods/a/none", "", false, "", "not found"},
			{"/pods/a/none", "0", false, "", "not found"},
			{"/pods/a/none", "", true, "/@", "none"},
			{"/pods/a/none", "3", true, "/@", "none"},
			{"/pods/a", "0", false, "", "not found"},
			{"/pods/a/", "0", false, "", "not found"},
			{"/pods/a/one", "4", false, "", "too large"},
			{"/pods/a/one", "18446744073709551615", false, "", "too large"},
			{"/pods/a/one", "x", false, "", "bad request"},
			{"/pods/a/one", "-1", false, "", "bad request"},
			{"/pods/a/one", "1.5", true, "", "bad request"},
			{"/nodes/a/one", "0", false, "", "bad key"},
			{"/pods/../one", "0", true, "", "bad key"},
			{"/pods/a/..", "", false, "", "bad key"},
			{"/pods/./one", "", false, "", "bad key"},
			{"", "", false, "", "bad key"},
			{"/", "0", true, "", "bad key"},
		} {
			pod := poddata.Pod("what/was", "there=before")
			err := c.Get(t.Context(), tc.key, storage.GetOptions{ResourceVersion: tc.rv, IgnoreNotFound: tc.ignore}, pod)
			assert.Equal(t, tc.class, errorClass(err), "%s at %q: %v", tc.key, tc.rv, err)
			if err == nil {
				assert.Equal(t, tc.want, fmt.Sprintf("%s/%s@%s", pod.Namespace, pod.Name, pod.ResourceVersion), "%s at %q", tc.key, tc.rv)
			}
			// Storage says the same, but that it does not wait for a version.
			fromStorage := store.Get(t.Context(), tc.key, storage.GetOptions{ResourceVersion: tc.rv, IgnoreNotFound: tc.ignore}, &example.Pod{})
			assert.Equal(t, tc.class, errorClass(fromStorage), "%s at %q: storage says %v", tc.key, tc.rv, fromStorage)
			before++
		}
		assert.Equal(t, before, store.Requests()["get"], "the GETs that went to storage")
	})
}

func TestGetIntoWhatDoesNotFit(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	c := start(t, store)
	for name, into := range map[string]runtime.Object{
		"nil":          nil,
		"no pointer":   byValue{},
		"nil pointer":  (*example.Pod)(nil),
		"another type": &example.PodList{},
	} {
		for _, rv := range []string{"", "0"} {
			err := c.Get(testContext(t), "/pods/a/one", storage.GetOptions{ResourceVersion: rv}, into)
			assert.Error(t, err, "%s at %q: no error", name, rv)
			if name == "another type" {
				assert.Contains(t, fmt.Sprint(err), "PodList", "%s at %q: %v does not name the type", name, rv, err)
			}
		}
	}
}

// byValue is a runtime.Object that is no pointer.
type byValue struct{ example.Pod }

func (byValue) DeepCopyObject() runtime.Object   { return byValue{} }
func (byValue) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// A consistent GET gives an object that is all the caller's own: who reads
// before writing changes what was read.
func TestConsistentGetIsPrivate(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "x=y"))
	c := start(t, store)
	want := poddata.Pod("a/one", "x=y")
	want.ResourceVersion = "2"
	for range 2 {
		pod := &example.Pod{}
		require.NoError(t, c.Get(testContext(t), "/pods/a/one", storage.GetOptions{}, pod))
		assert.Equal(t, want, pod)
		pod.Labels["x"] = "z"
		pod.Name = "other"
	}
	for _, pod := range expectList(t, c, "/pods/", "0", "a/one@2").Items {
		assert.Equal(t, "y", pod.Labels["x"], "the cache has %v", pod.Labels)
	}
}

// A GET at a version shares no more than what is below the top level.
func TestGetDoesNotAliasTheTopLevel(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "x=y"))
	c := start(t, store)
	for range 2 {
		pod := &example.Pod{}
		require.NoError(t, c.Get(testContext(t), "/pods/a/one", storage.GetOptions{ResourceVersion: "0"}, pod))
		assert.Equal(t, "one", pod.Name, "%+v", pod)
		assert.Equal(t, "2", pod.ResourceVersion, "%+v", pod)
		assert.Equal(t, "y", pod.Labels["x"], "%+v", pod)
		pod.Name, pod.ResourceVersion, pod.Labels = "other", "9", nil
	}
}

// Regression 37, for reads: a stopped cache answers at once, whatever is
// asked of it, and bothers storage with none of it.
func TestReadsOfAStoppedCache(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		store.Hold()
		put(store, poddata.Pod("a/one"))
		waiting := []*reading{goList(t.Context(), c, ""), goGet(t.Context(), c, "/pods/a/one", ""), goList(t.Context(), c, "9"), goGet(t.Context(), c, "/pods/a/one", "9")}
		synctest.Wait()
		c.Stop()
		before := store.Requests()
		for _, rv := range []string{"", "0", "2", "9"} {
			waiting = append(waiting, goList(t.Context(), c, rv), goGet(t.Context(), c, "/pods/a/one", rv))
		}
		synctest.Wait()
		for i, r := range waiting {
			assert.False(t, r.under(), "read %d goes on", i)
			assert.True(t, apierrors.IsTooManyRequests(r.err), "read %d: got %q %v", i, r.got, r.err)
		}
		err := c.GetList(t.Context(), "/pods/", limited(everything(""), 1), &example.PodList{})
		assert.True(t, apierrors.IsTooManyRequests(err), "a page: got %v, want 429", err)
		after := store.Requests()
		assert.Equal(t, before["list"], after["list"], "lists that storage got")
		assert.Equal(t, before["get"], after["get"], "GETs that storage got")
		assert.Equal(t, before["version"], after["version"], "requests for its version that storage got")
	})
}

func limited(opts storage.ListOptions, limit int64) storage.ListOptions {
	opts.Predicate.Limit = limit
	return opts
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
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, _ *cacher.Cacher) {
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
