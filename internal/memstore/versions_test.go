// SPDX-License-Identifier: Apache-2.0

package memstore_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

func TestKeyVersions(t *testing.T) {
	s := memstore.New("/pods/", poddata.New)
	first := s.Put("/pods/ns/a", poddata.New())
	s.Put("/pods/ns/b", poddata.New())
	s.Remove("/pods/ns/b")
	touched := s.Touch()

	versions, current, err := s.KeyVersions(t.Context(), []string{"/pods/ns/b", "/pods/ns/a", "/pods/ns/none"})
	require.NoError(t, err)
	require.Equal(t, []uint64{0, first, 0}, versions)
	require.Equal(t, touched, current)
	_, _, err = s.KeyVersions(t.Context(), []string{"/pods/ns/a", "/nodes/a"})
	require.ErrorContains(t, err, `"/nodes/a"`)
	require.Equal(t, map[string]int{"keyversions": 2}, s.Requests())
}

func TestKeyVersionsFailsAndWaitsOnDemand(t *testing.T) {
	s := memstore.New("/pods/", poddata.New)
	broken := errors.New("broken")
	s.Fail("keyversions", broken)
	_, _, err := s.KeyVersions(t.Context(), nil)
	require.ErrorIs(t, err, broken)
	s.Fail("keyversions", nil)

	open := s.Gate("keyversions")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = s.KeyVersions(ctx, nil)
	require.ErrorIs(t, err, context.Canceled)
	// The answer is that of the moment when the gate opens.
	answered := make(chan uint64)
	go func() {
		versions, _, _ := s.KeyVersions(t.Context(), []string{"/pods/ns/a"})
		answered <- versions[0]
	}()
	require.NoError(t, s.AwaitRequests(t.Context(), "keyversions", 3))
	written := s.Put("/pods/ns/a", poddata.New())
	open()
	require.Equal(t, written, <-answered)
}

// A deletion that was decided by the state that was suggested, which has the version of
// the current one and another content, leaves the history as it is.
func TestDeletionOfASuggestedState(t *testing.T) {
	s := memstore.New("/pods/", poddata.New)
	written := s.Put("/pods/ns/a", poddata.Pod("ns/a", "color=red"))
	suggestion := poddata.Pod("ns/a", "color=blue")
	suggestion.ResourceVersion = strconv.FormatUint(written, 10)
	allow := func(context.Context, runtime.Object) error { return nil }
	require.NoError(t, s.Delete(t.Context(), "/pods/ns/a", nil, nil, allow, suggestion, storage.DeleteOptions{}))
	require.Empty(t, s.Objects())
	s.Restore(written)
	require.Equal(t, "red", s.Objects()["/pods/ns/a"].(*example.Pod).Labels["color"])
}

// An update is tried with the state that is suggested, and again with the current one if
// that has another version.
func TestUpdateOfASuggestedState(t *testing.T) {
	s := memstore.New("/pods/", poddata.New)
	old := poddata.Pod("ns/a", "color=red")
	s.Put("/pods/ns/a", old)
	suggestion := old.DeepCopy()
	s.Put("/pods/ns/a", poddata.Pod("ns/a", "color=blue"))
	var tried []string
	out := &example.Pod{}
	require.NoError(t, s.GuaranteedUpdate(t.Context(), "/pods/ns/a", out, false, nil, func(state runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
		pod := state.(*example.Pod)
		require.Equal(t, pod.ResourceVersion, strconv.FormatUint(meta.ResourceVersion, 10))
		tried = append(tried, pod.Labels["color"])
		pod.Labels["size"] = "2"
		return pod, nil, nil
	}, suggestion))
	require.Equal(t, []string{"red", "blue"}, tried)
	require.Equal(t, map[string]string{"color": "blue", "size": "2"}, out.Labels)
	require.Equal(t, map[string]string{"color": "red"}, suggestion.Labels)
}
