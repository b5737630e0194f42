// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// FuzzListOptions compares the cache's answer to any list options with that of
// the storage under it, which validates them as k8s.io/apiserver's does: the
// same class of error, or the same items at the same version with the same
// continue token.
func FuzzListOptions(f *testing.F) {
	store := newStore(poddata.Pod("a/one"), poddata.Pod("a/two"), poddata.Pod("b/one"), poddata.Pod("b/two")) // 2..5
	store.Compact(3)
	c := start(f, store, func(c *cacher.Config) { c.FreshnessTimeout, c.StaleReads = 10*time.Millisecond, 1000 })
	put(store, poddata.Pod("a/one", "x=y")) // 6
	store.Remove("/pods/a/two")             // 7
	expectFresh(f, c)

	for _, seed := range []struct {
		key, rv, match, token string
		limit                 int64
		recursive             bool
	}{
		{"/pods/", "", "", "", 0, true},
		{"/pods/", "0", "", "", 2, true},
		{"/pods/a", "5", "", "", 1, true},
		{"/pods/a/", "5", "Exact", "", 0, true},
		{"/pods/a/one", "5", "Exact", "", 0, false},
		{"/pods/a/one", "6", "NotOlderThan", "", 3, false},
		{"/pods/", "2", "Exact", "", 0, true},
		{"/pods/", "99", "Exact", "", 0, true},
		{"/pods/", "x", "", "", 0, true},
		{"/pods/", "18446744073709551615", "Exact", "", 0, true},
		{"/pods/", "7", "Newest", "", 0, true},
		{"/pods/", "", "", tokenOf(tokenV1, 6, "a/two"), 1, true},
		{"/pods/", "", "", tokenOf(tokenV1, -1, "a/two"), 1, true},
		{"/pods/", "0", "Exact", tokenOf(tokenV1, 2, "a/two"), 1, true},
		{"/pods/", "", "", tokenOf(tokenV1, 0, "a/two"), 1, true},
		{"/pods/", "", "", tokenOf(tokenV1, 6, "../secrets"), 1, true},
		{"/pods/..", "", "", "", 0, true},
		{"/pod", "", "", "", -1, true},
		{"/", "", "", "", 0, false},
		{"/pods//", "", "", "", 0, true},
	} {
		f.Add(seed.key, seed.rv, seed.match, seed.token, seed.limit, seed.recursive)
	}
	f.Fuzz(func(t *testing.T, key, rv, match, token string, limit int64, recursive bool) {
		opts := storage.ListOptions{
			ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatch(match),
			Predicate: storage.Everything, Recursive: recursive,
		}
		opts.Predicate.Limit, opts.Predicate.Continue = limit, token
		got, want := &example.PodList{}, &example.PodList{}
		err, fromStorage := c.GetList(t.Context(), key, opts, got), store.GetList(t.Context(), key, opts, want)
		if version, err := strconv.ParseUint(rv, 10, 64); err == nil && version > math.MaxInt64 {
			return // which storage takes for a negative one, and that for the latest
		}
		require.Equal(t, errorClass(fromStorage), errorClass(err), "got %v, storage says %v", err, fromStorage)
		version, parsed := strconv.ParseUint(rv, 10, 64)
		continued := recursive && token != ""
		if err != nil || (limit > 0 && parsed == nil && version == 0 && !continued) {
			return // a limit does not count at "0", where storage counts it
		}
		require.Equal(t, lineOf(want), lineOf(got))
		require.Equal(t, want.Continue, got.Continue)
	})
}
