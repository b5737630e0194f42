// SPDX-License-Identifier: Apache-2.0

package memstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A watch that hangs answers with the version that it was opened at, although that is
// compacted; the 410 comes when it no longer hangs.
func TestStaleWatchOfACompactedVersion(t *testing.T) {
	s := memstore.New("/pods/", poddata.New)
	s.Put("/pods/ns/a", poddata.New())
	s.Put("/pods/ns/b", poddata.New())
	s.Compact(s.Touch())
	release := s.HangWatches(memstore.Hang{Stale: true, Next: 1})
	w, err := s.Watch(t.Context(), "/pods/", storage.ListOptions{
		ResourceVersion: "2", Recursive: true, ProgressNotify: true, Predicate: storage.Everything,
	})
	require.NoError(t, err)
	defer w.Stop()
	require.NoError(t, s.RequestWatchProgress(t.Context()))
	event := <-w.ResultChan()
	require.Equal(t, watch.Bookmark, event.Type)
	require.Equal(t, "2", event.Object.(*example.Pod).ResourceVersion)
	release()
	require.Equal(t, watch.Error, (<-w.ResultChan()).Type)
}
