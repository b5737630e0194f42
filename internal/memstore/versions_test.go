// SPDX-License-Identifier: Apache-2.0

package memstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

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
