// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// shadowed opens a storage with a cache in the shadow of the shipped cacher.
func shadowed(t *testing.T, flags cacher.Config, options ...cacher.Option) (s storage.Interface, cache *cacher.Cacher, destroy func()) {
	t.Helper()
	raw := &rawStores{}
	s, destroy, err := askedFor(nil).of(cacher.Decorator(append(options, cacher.WithRawStorage(raw.open), cacher.WithOptions(&cacher.Options{Config: flags, Shadow: 1}))...))
	require.NoError(t, err)
	t.Cleanup(destroy)
	cache = cacher.CacheOf(s)
	require.NotNil(t, cache)
	require.NoError(t, cache.Wait(testContext(t)))
	until(t, "the shipped cacher is ready", func() bool { return s.ReadinessCheck() == nil })
	return s, cache, destroy
}

// A difference is counted, remembered and logged, once a minute, without anything of the
// objects. The client gets the shipped cacher's answer.
func TestShadowFindsADifference(t *testing.T) {
	const asked = 3
	text := logged(t, func() {
		s, cache, destroy := shadowed(t, cacher.Config{}, cacher.Configure(func(c *cacher.Config) {
			c.GetAttrsFunc = func(o runtime.Object) (labels.Set, fields.Set, error) { // labels are lost
				_, all, err := poddata.Attrs(o)
				return nil, all, err
			}
		}))
		for _, name := range []string{"secret/one", "secret/two"} {
			require.NoError(t, s.Create(t.Context(), poddata.Prefix+name, poddata.Pod(name, "app=secret"), &example.Pod{}, 0))
		}
		for range asked {
			list := &example.PodList{}
			opts := storage.ListOptions{Recursive: true, Predicate: poddata.Predicate("app=secret", "")}
			require.NoError(t, s.GetList(t.Context(), poddata.Prefix, opts, list))
			require.Len(t, list.Items, 2)
		}
		until(t, "the differences are counted", func() bool {
			status := cache.Status()
			return status.Totals.ShadowDiffered["list"] == asked && status.LastError != nil && status.LastError.Times == asked
		})
		status := cache.Status()
		require.EqualValues(t, asked, status.Totals.ShadowCompared["list"])
		require.Equal(t, "list: number of items", status.LastError.Message)
		require.Contains(t, status.LastError.Summary, "differs from the shipped cacher")
		require.EqualValues(t, 1, status.Shadow)
		destroy() // and no line comes any more
	})
	var lines []string
	for l := range strings.Lines(text) {
		if strings.Contains(l, "differs from the shipped cacher") {
			lines = append(lines, l)
		}
	}
	lines = slices.Compact(lines) // klog writes an error for each severity
	require.Len(t, lines, 1, text)
	for _, word := range []string{`resource="pods"`, `kind="list"`, `difference="number of items"`, "shippedVersion=", "shadowVersion="} {
		require.Contains(t, lines[0], word)
	}
	require.NotContains(t, lines[0], "secret")
}

// The cache in the shadow serves nobody else: it shares no lists, does not sleep, does not
// ask storage, and ends with the shipped cacher.
func TestShadowStandsBack(t *testing.T) {
	s, cache, destroy := shadowed(t, cacher.Config{LazyStart: true, IdleTimeout: time.Minute},
		cacher.Configure(func(c *cacher.Config) { c.Lists = &cacher.ListEncodings{} }))
	config := cache.Config()
	require.False(t, config.LazyStart)
	require.Zero(t, config.IdleTimeout)
	require.Nil(t, config.Lists)
	require.True(t, config.DisableSizeEstimation)
	require.Nil(t, cacher.CacheOf(config.Storage))
	require.Same(t, cache, cacher.CacheOf(cache))
	require.Nil(t, cacher.CacheOf(&shipped.CacheDelegator{}))

	w, err := s.Watch(t.Context(), poddata.Prefix, storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything})
	require.NoError(t, err)
	require.NoError(t, s.Create(t.Context(), poddata.Prefix+"a/one", poddata.Pod("a/one"), &example.Pod{}, 0))
	require.Equal(t, "ADDED a/one", line(<-w.ResultChan())[:len("ADDED a/one")])
	destroy()
	require.Equal(t, "closed", line(<-w.ResultChan()))
	require.Error(t, cache.Wait(testContext(t)))
}

// A configuration that the shipped cacher refuses names the flag, and opens nothing.
func TestShadowNeedsTheShippedCacher(t *testing.T) {
	raw := &rawStores{}
	asked := askedFor(nil)
	asked.config.Codec = nil
	_, _, err := asked.of(cacher.Decorator(cacher.WithRawStorage(raw.open), cacher.WithOptions(&cacher.Options{Shadow: 0.5})))
	require.ErrorContains(t, err, "--watch-cache-shadow: the shipped cacher of")
	require.ErrorContains(t, err, "Codec")
	require.Equal(t, raw.opened.Load(), raw.destroyed.Load())
}
