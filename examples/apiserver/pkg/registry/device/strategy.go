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

type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (strategy) NamespaceScoped() bool { return true }

// PrepareForCreate resets the status, which only the status subresource writes.
func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	device := obj.(*fleet.Device)
	device.Status = fleet.DeviceStatus{Phase: fleet.DevicePending}
	device.Generation = 1
}

// PrepareForUpdate keeps the old status, and increments the generation if the spec changed.
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

// GetResetFields returns the fields reset by PrepareForCreate and PrepareForUpdate, so that
// server-side apply gives no manager ownership of them.
func (strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return resetInEachVersion("status")
}

type statusStrategy struct {
	strategy
}

// PrepareForUpdate keeps everything except the status.
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
