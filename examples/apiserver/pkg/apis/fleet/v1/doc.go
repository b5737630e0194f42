// SPDX-License-Identifier: Apache-2.0

// +k8s:deepcopy-gen=package
// +k8s:conversion-gen=github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.example.fleet.v1
// +groupName=fleet.example.com

// Package v1 is the stable version of the fleet.example.com API, and the storage version.
package v1
