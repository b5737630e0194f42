// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
)

// indexedFields are the selectable fields that a LIST finds by index.
var indexedFields = []string{"spec.zone", "spec.owner", "spec.firmware.channel", "status.phase"}

// attributes returns a device's labels, and its selectable fields by internal name.
func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	device, ok := obj.(*fleet.Device)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a device", obj)
	}
	return device.Labels, selectableFields(device), nil
}

func selectableFields(device *fleet.Device) fields.Set {
	return generic.AddObjectMetaFieldsSet(fields.Set{
		"spec.zone":             device.Spec.Zone,
		"spec.owner":            device.Spec.Owner,
		"spec.firmware.channel": string(device.Spec.Firmware.Channel),
		"status.phase":          string(device.Status.Phase),
	}, &device.ObjectMeta, true)
}

func predicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{
		Label:       label,
		Field:       field,
		GetAttrs:    attributes,
		IndexFields: indexedFields,
	}
}

func indexers() *cache.Indexers {
	indexers := cache.Indexers{}
	for _, name := range indexedFields {
		indexers[storage.FieldIndex(name)] = func(obj any) ([]string, error) {
			device, ok := obj.(*fleet.Device)
			if !ok {
				return nil, fmt.Errorf("%T is not a device", obj)
			}
			return []string{selectableFields(device)[name]}, nil
		}
	}
	return &indexers
}
