// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

func TestVersionsOfKeys(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints(), Prefix: "fleet"})
	s := newStore(t, b, pods("pods"))
	ctx := testContext(t)
	lister, ok := s.(interface {
		Versions(ctx context.Context, prefix string, rv uint64, visit func(key string, rv uint64) error) error
	})
	require.True(t, ok, "a store lists versions")

	first := rvOf(t, create(t, s, "/pods/ns/a"))
	second := rvOf(t, create(t, s, "/pods/ns/b"))
	third := rvOf(t, create(t, s, "/pods/other/c"))
	at := func(prefix string, rv uint64) (found []string) {
		require.NoError(t, lister.Versions(ctx, prefix, rv, func(key string, rv uint64) error {
			found = append(found, fmt.Sprintf("%s@%d", key, rv))
			return nil
		}))
		return found
	}
	require.Equal(t, []string{
		fmt.Sprintf("/pods/ns/a@%d", first), fmt.Sprintf("/pods/ns/b@%d", second), fmt.Sprintf("/pods/other/c@%d", third),
	}, at("/pods/", third))
	require.Equal(t, []string{fmt.Sprintf("/pods/ns/a@%d", first), fmt.Sprintf("/pods/ns/b@%d", second)}, at("/pods/ns", third))
	require.Equal(t, []string{fmt.Sprintf("/pods/ns/a@%d", first)}, at("/pods/", first))

	stop := errors.New("enough")
	require.ErrorIs(t, lister.Versions(ctx, "/pods/", third, func(string, uint64) error { return stop }), stop)
	require.Error(t, lister.Versions(ctx, "/elsewhere/", third, func(string, uint64) error { return nil }))
	require.Error(t, lister.Versions(ctx, "/pods/", third+1000, func(string, uint64) error { return nil }))
	_, err := b.Client().Compact(ctx, int64(third))
	require.NoError(t, err)
	err = lister.Versions(ctx, "/pods/", first, func(string, uint64) error { return nil })
	require.True(t, apierrors.IsResourceExpired(err), "got %v", err)
}
