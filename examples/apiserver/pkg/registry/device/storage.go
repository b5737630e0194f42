// SPDX-License-Identifier: Apache-2.0

// Package device is the registry of devices of the fleet.example.com API.
package device

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
)

// Storage serves devices and their status subresource. All served versions share one, because its
// store holds internal objects: one cache, and one watch on etcd, is enough.
type Storage struct {
	Device *REST
	Status *StatusREST
}

// REST serves devices.
type REST struct {
	*genericregistry.Store
}

// ShortNames are kubectl's short names for devices.
func (*REST) ShortNames() []string { return []string{"dev"} }

// Categories are the kubectl categories of devices.
func (*REST) Categories() []string { return []string{"all"} }

// NewStorage opens the store of devices with the getter's options.
func NewStorage(scheme *runtime.Scheme, getter generic.RESTOptionsGetter) (*Storage, error) {
	onSpec := strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &fleet.Device{} },
		NewListFunc:               func() runtime.Object { return &fleet.DeviceList{} },
		PredicateFunc:             predicate,
		DefaultQualifiedResource:  fleet.Resource("devices"),
		SingularQualifiedResource: fleet.Resource("device"),
		CreateStrategy:            onSpec,
		UpdateStrategy:            onSpec,
		DeleteStrategy:            onSpec,
		ResetFieldsStrategy:       onSpec,
		TableConvertor:            tableConvertor{now: time.Now},
	}
	options := &generic.StoreOptions{RESTOptions: getter, AttrFunc: attributes, Indexers: indexers()}
	if err := store.CompleteWithOptions(options); err != nil {
		return nil, fmt.Errorf("opening the store of devices: %w", err)
	}
	statusStore := *store
	onStatus := statusStrategy{onSpec}
	statusStore.UpdateStrategy = onStatus
	statusStore.ResetFieldsStrategy = onStatus
	return &Storage{Device: &REST{store}, Status: &StatusREST{&statusStore}}, nil
}

// StatusREST serves the status subresource: GET, UPDATE and PATCH.
type StatusREST struct {
	store *genericregistry.Store
}

// New returns an empty device.
func (*StatusREST) New() runtime.Object { return &fleet.Device{} }

// Destroy does nothing, because the main resource closes the store.
func (*StatusREST) Destroy() {}

// Get returns the device, for PATCH.
func (r *StatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update replaces the status. It never creates a device.
func (r *StatusREST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo,
	createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc,
	_ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, objInfo, createValidation, updateValidation, false, options)
}

// ConvertToTable returns the columns of the main resource.
func (r *StatusREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}

// GetResetFields returns the fields reset by a status update.
func (r *StatusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

var (
	_ rest.ShortNamesProvider = &REST{}
	_ rest.CategoriesProvider = &REST{}
	_ rest.Patcher            = &StatusREST{}
	_ rest.TableConvertor     = &StatusREST{}
)
