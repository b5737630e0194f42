// SPDX-License-Identifier: Apache-2.0

// Package nodes is the nodes of a cluster without machines: each registers, renews its
// lease and reports its status as a kubelet does, watches the pods that are bound to it,
// reports them as running and ready at once, and deletes them when they are to end. No
// container runs.
package nodes
