// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this API.
var GroupVersion = schema.GroupVersion{Group: "widgets.example.com", Version: "v1"}

// AddToScheme registers the types and the selectable fields. With a single version, its types are
// also the internal ones, which avoids conversions; examples/apiserver of watchcache has two
// versions.
func AddToScheme(scheme *runtime.Scheme) error {
	internal := schema.GroupVersion{Group: GroupVersion.Group, Version: runtime.APIVersionInternal}
	for _, version := range []schema.GroupVersion{GroupVersion, internal} {
		scheme.AddKnownTypes(version, &Widget{}, &WidgetList{})
	}
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return scheme.AddFieldLabelConversionFunc(GroupVersion.WithKind("Widget"), func(label, value string) (string, string, error) {
		switch label {
		case "metadata.name", "metadata.namespace", "spec.color":
			return label, value, nil
		}
		return "", "", fmt.Errorf("%q is not a selectable field of widgets", label)
	})
}
