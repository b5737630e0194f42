// SPDX-License-Identifier: Apache-2.0

// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.example.widgets.v1
// +groupName=widgets.example.com

// Package v1 is the widgets.example.com API.
package v1
