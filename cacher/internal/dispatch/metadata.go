// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// metadata returns the cached object's metadata, for reading only.
func (o *object) metadata() metav1.Object {
	accessor, err := meta.Accessor(o.element.Object)
	if err != nil {
		return &metav1.ObjectMeta{}
	}
	return accessor
}

// GetObjectMeta implements metav1.ObjectMetaAccessor. It copies nothing.
func (o *object) GetObjectMeta() metav1.Object { return o }

// The getters of metav1.Object return copies of the cached object's metadata (regression 24).
// The setters do nothing, because all watchers share the object.

func (o *object) GetNamespace() string              { return o.metadata().GetNamespace() }
func (o *object) GetName() string                   { return o.metadata().GetName() }
func (o *object) GetGenerateName() string           { return o.metadata().GetGenerateName() }
func (o *object) GetUID() types.UID                 { return o.metadata().GetUID() }
func (o *object) GetResourceVersion() string        { return o.metadata().GetResourceVersion() }
func (o *object) GetGeneration() int64              { return o.metadata().GetGeneration() }
func (o *object) GetSelfLink() string               { return o.metadata().GetSelfLink() }
func (o *object) GetCreationTimestamp() metav1.Time { return o.metadata().GetCreationTimestamp() }
func (o *object) GetDeletionTimestamp() *metav1.Time {
	return o.metadata().GetDeletionTimestamp().DeepCopy()
}
func (o *object) GetDeletionGracePeriodSeconds() *int64 {
	seconds := o.metadata().GetDeletionGracePeriodSeconds()
	if seconds == nil {
		return nil
	}
	return ptr.To(*seconds)
}
func (o *object) GetLabels() map[string]string      { return maps.Clone(o.metadata().GetLabels()) }
func (o *object) GetAnnotations() map[string]string { return maps.Clone(o.metadata().GetAnnotations()) }
func (o *object) GetFinalizers() []string           { return slices.Clone(o.metadata().GetFinalizers()) }
func (o *object) GetOwnerReferences() []metav1.OwnerReference {
	owners := slices.Clone(o.metadata().GetOwnerReferences())
	for i := range owners {
		owners[i] = *owners[i].DeepCopy()
	}
	return owners
}
func (o *object) GetManagedFields() []metav1.ManagedFieldsEntry {
	entries := slices.Clone(o.metadata().GetManagedFields())
	for i := range entries {
		entries[i] = *entries[i].DeepCopy()
	}
	return entries
}

func (*object) SetNamespace(string)                          {}
func (*object) SetName(string)                               {}
func (*object) SetGenerateName(string)                       {}
func (*object) SetUID(types.UID)                             {}
func (*object) SetResourceVersion(string)                    {}
func (*object) SetGeneration(int64)                          {}
func (*object) SetSelfLink(string)                           {}
func (*object) SetCreationTimestamp(metav1.Time)             {}
func (*object) SetDeletionTimestamp(*metav1.Time)            {}
func (*object) SetDeletionGracePeriodSeconds(*int64)         {}
func (*object) SetLabels(map[string]string)                  {}
func (*object) SetAnnotations(map[string]string)             {}
func (*object) SetFinalizers([]string)                       {}
func (*object) SetOwnerReferences([]metav1.OwnerReference)   {}
func (*object) SetManagedFields([]metav1.ManagedFieldsEntry) {}
