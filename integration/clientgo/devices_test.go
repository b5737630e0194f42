// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
)

var namespaces atomic.Int64

// newNamespace gives a namespace that nobody else uses. Its objects are deleted
// with the test.
func (fx *fixture) newNamespace(t *testing.T) string {
	t.Helper()
	namespace := "test-" + strconv.FormatInt(namespaces.Add(1), 10)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := fx.keys.Delete(ctx, devicesPrefix+namespace+"/", clientv3.WithPrefix())
		require.NoError(t, err)
	})
	return namespace
}

// device gives a valid device that has not been created.
func device(namespace, name string) *fleetv1.Device {
	return &fleetv1.Device{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"kind": "sensor"}},
		Spec: fleetv1.DeviceSpec{
			Zone: "hh-1", Owner: "field-ops", Model: "Arbor S96",
			Firmware: fleetv1.Firmware{Channel: fleetv1.FirmwareStable},
		},
		Status: fleetv1.DeviceStatus{Phase: fleetv1.DevicePending},
	}
}

// devices writes devices in one namespace, through the API.
type devices struct {
	client    versioned.Interface
	namespace string
}

// writer gives what writes in a namespace, on connections of its own that don't
// lead through the proxy.
func (fx *fixture) writer(t *testing.T, namespace string) devices {
	t.Helper()
	return devices{client: clientset(t, fx.direct()), namespace: namespace}
}

// create creates a device of that name.
func (d devices) create(t *testing.T, name string) *fleetv1.Device {
	t.Helper()
	created, err := d.client.FleetV1().Devices(d.namespace).Create(within(t), device(d.namespace, name), metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// update changes the device: it gets the owner.
func (d devices) update(t *testing.T, name, owner string) *fleetv1.Device {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"owner":%q}}`, owner)
	updated, err := d.client.FleetV1().Devices(d.namespace).Patch(within(t), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
	return updated
}

// delete deletes the device.
func (d devices) delete(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, d.client.FleetV1().Devices(d.namespace).Delete(within(t), name, metav1.DeleteOptions{}))
}

// within gives a context that ends with the test or when patience does.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until condition returns nil.
func eventually(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(ctx context.Context) (bool, error) {
		last = condition(ctx)
		return last == nil, nil
	})
	require.NoError(t, err, "%s: %v", what, last)
}

// noLeaks fails the test for each goroutine that it starts from now on and that
// outlives everything that is cleaned up.
func noLeaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}
