// SPDX-License-Identifier: Apache-2.0

//go:build !k8s38

package conformance

// onceClauses are about single attempts to write, which storage.Interface has from
// Kubernetes 1.38.
var onceClauses []storeClause
