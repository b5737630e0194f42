// SPDX-License-Identifier: Apache-2.0

package customresources

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/dynamic"

	"github.com/kube-watchcache/watchcache/debug"
	watchcache "github.com/kube-watchcache/watchcache/server"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// TestSwitch: of two custom resources the one that --watch-cache-shipped names is on the
// shipped cacher, and their definitions stay on ours. The answers are those of a server
// without a line of ours.
func TestSwitch(t *testing.T) {
	etcd, err := embedded.Start(t.Context(), embedded.Config{Dir: filepath.Join(t.TempDir(), "etcd"), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	f := &fixture{etcd: etcd.Endpoints()}
	f.shipped = serve(t, f.etcd, false)
	f.cached = serve(t, f.etcd, true, watchcache.WithOptions(&watchcache.Options{Shipped: []string{"lions." + group}}))
	f.client, err = dynamic.NewForConfig(f.shipped.config)
	require.NoError(t, err)
	for plural, kind := range map[string]string{"lions": "Lion", "pandas": "Panda"} {
		f.define(t, definition(plural, kind, nil))
		for i := range 8 {
			f.put(t, plural, kind, "ns1", fmt.Sprintf("a%d", i), 0)
		}
		var encoded []int64
		for range 3 {
			for _, version := range []string{"v1", "v2"} {
				want, before := f.shipped.ask(t, root(version)+plural, asJSON, false), f.cached.encoded.Load()
				require.Equal(t, http.StatusOK, want.status)
				require.Equal(t, want, f.cached.ask(t, root(version)+plural, asJSON, false))
				encoded = append(encoded, f.cached.encoded.Load()-before)
			}
		}
		whole := int64(len(f.cached.ask(t, root("v2")+plural, asJSON, false).body))
		require.Equal(t, plural == "lions", encoded[5] == whole, "%v of %d bytes: the server encodes the items of lists on the shipped cacher", encoded, whole)
	}
	page := string(f.cached.ask(t, debug.Path+"?format=json", "", false).body)
	require.Contains(t, page, "pandas."+group)
	require.Contains(t, page, "customresourcedefinitions.")
	require.NotContains(t, page, "lions")
}
