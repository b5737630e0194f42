// SPDX-License-Identifier: Apache-2.0

// Package minors implements the rules of storage.Interface that differ between minors of
// Kubernetes.
package minors
