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
