// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// unstructuredList is encoded as it is. Scheme codecs would convert an
// unstructured.UnstructuredList.
type unstructuredList struct{ unstructured.UnstructuredList }

// DeepCopyObject implements runtime.Object.
func (l *unstructuredList) DeepCopyObject() runtime.Object {
	return &unstructuredList{*l.UnstructuredList.DeepCopy()}
}

// NewEmptyInstance implements runtime.Unstructured.
func (l *unstructuredList) NewEmptyInstance() runtime.Unstructured {
	return &unstructuredList{*l.UnstructuredList.NewEmptyInstance().(*unstructured.UnstructuredList)}
}

// newScheme returns a scheme of all types sent and received. Each resource has one version, whose
// types are also the internal ones.
func newScheme(resources map[schema.GroupResource]*resource) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	core := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, core)
	scheme.AddUnversionedTypes(core, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	for _, r := range resources {
		gv := r.GroupVersion()
		if !scheme.IsVersionRegistered(gv) {
			metav1.AddToGroupVersion(scheme, gv)
		}
		for _, version := range []schema.GroupVersion{gv, {Group: gv.Group, Version: runtime.APIVersionInternal}} {
			scheme.AddKnownTypeWithName(version.WithKind(r.kind.Kind), r.newObject())
			scheme.AddKnownTypeWithName(version.WithKind(r.listKind.Kind), r.newList())
		}
		err := scheme.AddFieldLabelConversionFunc(r.kind, func(label, value string) (string, string, error) {
			if !r.selectable(label) { // it would be "" for every object
				return "", "", fmt.Errorf("field label not supported by this relay: %q", label)
			}
			return label, value, nil
		})
		if err != nil {
			return nil, err
		}
	}
	return scheme, nil
}
