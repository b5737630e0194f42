// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
)

func testTypedClients(t *testing.T, s *apiserver) {
	client, ctx := clientsetFor(t, s), within(t)
	stable, beta := client.FleetV1().Devices("typed"), client.FleetV1beta1().Devices("typed")

	created, err := stable.Create(ctx, device("typed", "one", "hh-1"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, fleetv1.DevicePending, created.Status.Phase)
	require.NotEmpty(t, created.UID)
	_, err = stable.Create(ctx, device("typed", "one", "hh-1"), metav1.CreateOptions{})
	require.True(t, apierrors.IsAlreadyExists(err), "%v", err)
	_, err = stable.Create(ctx, device("typed", "two", "No Zone!"), metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, "spec.zone")

	// One write is seen at once in both versions, and so is the next.
	seen, err := beta.Get(ctx, "one", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, created.ResourceVersion, seen.ResourceVersion)
	require.Equal(t, v1beta1.FirmwareStable, seen.Spec.FirmwareChannel)
	seen.Spec.FirmwareChannel, seen.Spec.FirmwareVersion = v1beta1.FirmwareBeta, "1.2.3"
	written, err := beta.Update(ctx, seen, metav1.UpdateOptions{})
	require.NoError(t, err)
	got, err := stable.Get(ctx, "one", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, written.ResourceVersion, got.ResourceVersion)
	require.Equal(t, fleetv1.Firmware{Channel: fleetv1.FirmwareBeta, Version: "1.2.3"}, got.Spec.Firmware)
	require.Equal(t, created.Generation+1, got.Generation)

	// A stale writer is told so.
	created.Spec.Owner = "late"
	_, err = stable.Update(ctx, created, metav1.UpdateOptions{})
	require.True(t, apierrors.IsConflict(err), "%v", err)

	// The status subresource writes the status and nothing else.
	got.Status.Phase, got.Spec.Owner = fleetv1.DeviceReady, "ignored"
	ready, err := stable.UpdateStatus(ctx, got, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, fleetv1.DeviceReady, ready.Status.Phase)
	require.Equal(t, "field-ops", ready.Spec.Owner)
	patched, err := stable.Patch(ctx, "one", types.MergePatchType, []byte(`{"spec":{"owner":"patched"},"status":{"phase":"Offline"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, "patched", patched.Spec.Owner)
	require.Equal(t, fleetv1.DeviceReady, patched.Status.Phase)

	testSelectors(ctx, t, s)

	require.NoError(t, stable.Delete(ctx, "one", metav1.DeleteOptions{}))
	for _, rv := range []string{"", ready.ResourceVersion} {
		_, err = stable.Get(ctx, "one", metav1.GetOptions{ResourceVersion: rv})
		if rv == "" {
			require.True(t, apierrors.IsNotFound(err), "%v", err)
		}
	}
	require.NoError(t, stable.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	left, err := stable.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, left.Items)
}

func testSelectors(ctx context.Context, t *testing.T, s *apiserver) {
	client := clientsetFor(t, s)
	create(t, client, "typed", "many", 9)
	create(t, client, "typed-not", "many", 3)
	stable, beta := client.FleetV1().Devices("typed"), client.FleetV1beta1().Devices("typed")
	for selector, want := range map[string]int{
		"spec.zone=zone-1":                    3,
		"spec.zone!=zone-1":                   7,
		"status.phase=Ready":                  1,
		"spec.zone=hh-1,status.phase=Pending": 0,
		"metadata.name=many-004":              1,
		"spec.firmware.channel=beta":          1,
	} {
		list, err := stable.List(ctx, metav1.ListOptions{FieldSelector: selector})
		require.NoError(t, err, selector)
		require.Len(t, list.Items, want, selector)
	}
	list, err := beta.List(ctx, metav1.ListOptions{FieldSelector: "spec.firmwareChannel=beta", LabelSelector: "kind=sensor"})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	_, err = stable.List(ctx, metav1.ListOptions{FieldSelector: "spec.model=x"})
	require.True(t, apierrors.IsBadRequest(err), "%v", err)
	everywhere, err := client.FleetV1().Devices("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=many-001"})
	require.NoError(t, err)
	require.Len(t, everywhere.Items, 2)
}
