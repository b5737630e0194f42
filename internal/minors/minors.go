// SPDX-License-Identifier: Apache-2.0

// Package minors has the rules of storage.Interface that differ between the minors of
// Kubernetes.
package minors
