// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Widget is the one type of this API.
type Widget struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the widget should be.
	Spec WidgetSpec `json:"spec"`
}

// WidgetSpec is what a widget should be.
type WidgetSpec struct {
	// color is required. A selectable field.
	Color string `json:"color"`
	// size is in millimetres.
	// +optional
	Size int32 `json:"size,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// WidgetList is a list of widgets at one resourceVersion.
type WidgetList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the widgets.
	Items []Widget `json:"items"`
}
