// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
)

func newDevice() *fleet.Device {
	return &fleet.Device{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "lab", Generation: 3, Labels: map[string]string{"kind": "switch"}},
		Spec: fleet.DeviceSpec{Zone: "lab-1", Owner: "network", Model: "Arbor S48",
			Firmware: fleet.Firmware{Channel: fleet.FirmwareBeta, Version: "2.0"}},
		Status: fleet.DeviceStatus{Phase: fleet.DeviceReady},
	}
}

func TestAttributes(t *testing.T) {
	labelSet, fieldSet, err := attributes(newDevice())
	require.NoError(t, err)
	require.Equal(t, labels.Set{"kind": "switch"}, labelSet)
	require.Equal(t, fields.Set{
		"metadata.name":         "a",
		"metadata.namespace":    "lab",
		"spec.zone":             "lab-1",
		"spec.owner":            "network",
		"spec.firmware.channel": "beta",
		"status.phase":          "Ready",
	}, fieldSet)
	_, _, err = attributes(&fleet.DeviceList{})
	require.ErrorContains(t, err, "DeviceList")
}

func TestPredicate(t *testing.T) {
	for selector, want := range map[string]bool{
		"":                                 true,
		"spec.zone=lab-1":                  true,
		"spec.zone=lab-1,spec.owner=other": false,
		"status.phase!=Ready":              false,
		"metadata.name=a":                  true,
		"spec.firmware.channel=beta":       true,
	} {
		p := predicate(labels.Everything(), fields.ParseSelectorOrDie(selector))
		got, err := p.Matches(newDevice())
		require.NoError(t, err)
		require.Equal(t, want, got, selector)
	}
}

// TestIndexers: whatever a selector can pin has an index, under the name that the
// predicate asks for.
func TestIndexers(t *testing.T) {
	all := *indexers()
	require.Len(t, all, len(indexedFields))
	for _, name := range indexedFields {
		value := selectableFields(newDevice())[name]
		require.NotEmpty(t, value, name)
		p := predicate(labels.Everything(), fields.OneTermEqualSelector(name, value))
		matches := p.MatcherIndex(context.Background())
		require.Len(t, matches, 1, name)
		require.Equal(t, storage.FieldIndex(name), matches[0].IndexName)
		got, err := all[matches[0].IndexName](newDevice())
		require.NoError(t, err)
		require.Equal(t, []string{matches[0].Value}, got, name)
	}
	_, err := all[storage.FieldIndex("spec.zone")]("no device")
	require.Error(t, err)
}

func TestPrepareForCreate(t *testing.T) {
	device := newDevice()
	strategy{}.PrepareForCreate(context.Background(), device)
	require.Equal(t, fleet.DeviceStatus{Phase: fleet.DevicePending}, device.Status)
	require.EqualValues(t, 1, device.Generation)
}

func TestPrepareForUpdate(t *testing.T) {
	old, device := newDevice(), newDevice()
	device.Status.Phase = fleet.DeviceOffline
	device.Labels["kind"] = "router"
	strategy{}.PrepareForUpdate(context.Background(), device, old)
	require.Equal(t, old.Status, device.Status, "only the subresource changes the status")
	require.EqualValues(t, 3, device.Generation, "labels don't make a generation")

	device.Spec.Zone = "lab-2"
	strategy{}.PrepareForUpdate(context.Background(), device, old)
	require.EqualValues(t, 4, device.Generation)
}

func TestPrepareForStatusUpdate(t *testing.T) {
	old, device := newDevice(), newDevice()
	device.Status.Phase = fleet.DeviceOffline
	device.Spec.Zone = "lab-2"
	device.Labels = map[string]string{"kind": "router"}
	device.Generation = 9
	statusStrategy{}.PrepareForUpdate(context.Background(), device, old)
	want := newDevice()
	want.Status.Phase = fleet.DeviceOffline
	require.Equal(t, want, device)
}

func TestResetFields(t *testing.T) {
	for version, set := range (strategy{}).GetResetFields() {
		require.Equal(t, ".status", set.String(), version)
	}
	require.Len(t, statusStrategy{}.GetResetFields(), 2)
}

func TestTable(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	convertor := tableConvertor{now: func() time.Time { return now }}
	device := newDevice()
	device.CreationTimestamp = metav1.NewTime(now.Add(-3 * time.Hour))
	list := &fleet.DeviceList{
		ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more", RemainingItemCount: new(int64(4))},
		Items:    []fleet.Device{*device, {ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: fleet.DeviceSpec{Firmware: fleet.Firmware{Channel: "stable"}}}},
	}
	table, err := convertor.ConvertToTable(context.Background(), list, nil)
	require.NoError(t, err)
	require.Equal(t, list.ListMeta, table.ListMeta)
	require.Equal(t, columns, table.ColumnDefinitions)
	require.Len(t, table.Rows, 2)
	require.Equal(t, []any{"a", "lab-1", "network", "Arbor S48", "Ready", "3h", "beta 2.0"}, table.Rows[0].Cells)
	require.Equal(t, []any{"b", "", "", "", "", "<unknown>", "stable"}, table.Rows[1].Cells)

	device.ResourceVersion = "5"
	table, err = convertor.ConvertToTable(context.Background(), device, &metav1.TableOptions{NoHeaders: true})
	require.NoError(t, err)
	require.Empty(t, table.ColumnDefinitions)
	require.Equal(t, "5", table.ResourceVersion)
	require.Len(t, table.Rows, 1)

	_, err = convertor.ConvertToTable(context.Background(), &metav1.Status{}, nil)
	require.Error(t, err)
}

func TestStorageNeedsOptions(t *testing.T) {
	_, err := NewStorage(runtime.NewScheme(), nil)
	require.ErrorContains(t, err, "opening the store of devices")
}
