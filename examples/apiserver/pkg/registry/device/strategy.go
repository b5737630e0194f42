// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/validation"
)

// strategy says what a create or an update may do to a device.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (strategy) NamespaceScoped() bool { return true }

// PrepareForCreate drops a status that the client sent: only the status
// subresource writes it.
func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	device := obj.(*fleet.Device)
	device.Status = fleet.DeviceStatus{Phase: fleet.DevicePending}
	device.Generation = 1
}

// PrepareForUpdate keeps the old status, and counts the generations of the spec.
func (strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	device, previous := obj.(*fleet.Device), old.(*fleet.Device)
	device.Status = previous.Status
	device.Generation = previous.Generation
	if !apiequality.Semantic.DeepEqual(device.Spec, previous.Spec) {
		device.Generation++
	}
}

func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateDevice(obj.(*fleet.Device))
}

func (strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateDeviceUpdate(obj.(*fleet.Device), old.(*fleet.Device))
}

func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (strategy) Canonicalize(runtime.Object) {}

// GetResetFields names what PrepareForCreate and PrepareForUpdate reset, so that
// server-side apply gives nobody ownership of it.
func (strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return resetInEachVersion("status")
}

// statusStrategy says what an update of the status subresource may do.
type statusStrategy struct {
	strategy
}

// PrepareForUpdate keeps everything but the status.
func (statusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	device, previous := obj.(*fleet.Device), old.(*fleet.Device)
	device.Spec = previous.Spec
	device.Generation = previous.Generation
	device.Labels = previous.Labels
	device.Annotations = previous.Annotations
	device.OwnerReferences = previous.OwnerReferences
	device.Finalizers = previous.Finalizers
}

func (statusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateDeviceStatusUpdate(obj.(*fleet.Device), old.(*fleet.Device))
}

func (statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return resetInEachVersion("spec", "metadata.labels", "metadata.annotations", "metadata.ownerReferences", "metadata.finalizers")
}
