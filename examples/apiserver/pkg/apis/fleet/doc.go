// SPDX-License-Identifier: Apache-2.0

// +k8s:deepcopy-gen=package
// +groupName=fleet.example.com

// Package fleet holds the internal version of the fleet.example.com API: the
// types that the registry, the validation and the watch cache work with. They
// are never sent to a client nor stored; v1 and v1beta1 are, by conversion.
package fleet
