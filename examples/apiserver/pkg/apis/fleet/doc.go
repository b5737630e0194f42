// SPDX-License-Identifier: Apache-2.0

// +k8s:deepcopy-gen=package
// +groupName=fleet.example.com

// Package fleet is the internal version of the fleet.example.com API, used by the registry,
// validation and the watch cache. Clients and storage use v1 and v1beta1, by conversion.
package fleet
