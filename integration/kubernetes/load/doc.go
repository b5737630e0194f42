// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package load puts clusters of package local, on either cache by turns, under the same
// load, and reports what the kube-apiserver took for it. A round is a new cluster and
// four phases of it:
//
//   - fill: Deployments are created, until all pods are ready.
//   - steady: nothing changes, but for leases, statuses and the probe below.
//   - rolling: a share of the Deployments is rolled out again, at fixed times.
//   - restart: the same, and the kube-apiserver is stopped and started again when half
//     of them are through.
//
// In all phases but the first, clients list pods in three ways, and a probe changes a pod
// ten times a second, which two observers watch: one that watches all pods, and one that
// watches the probe by its name.
package load
