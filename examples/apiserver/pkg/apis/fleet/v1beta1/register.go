// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// SchemeGroupVersion is this version of the group.
var SchemeGroupVersion = schema.GroupVersion{Group: "fleet.example.com", Version: "v1beta1"}

var localSchemeBuilder = &runtime.SchemeBuilder{addKnownTypes, addDefaultingFuncs, addFieldLabelConversionFuncs}

// AddToScheme registers the types, defaults, conversions and selectable fields of this version.
var AddToScheme = localSchemeBuilder.AddToScheme

// Resource qualifies a resource with the group.
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &Device{}, &DeviceList{})
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}

func addDefaultingFuncs(scheme *runtime.Scheme) error {
	return RegisterDefaults(scheme)
}
