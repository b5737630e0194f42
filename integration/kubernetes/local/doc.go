// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package local runs a Kubernetes control plane on this machine, as processes: etcd, a
// kube-apiserver on a watch cache of choice, kube-controller-manager and kube-scheduler.
// All of them are one binary, that of package cluster, which becomes the server that its
// first argument names. Nothing of it is for production: etcd does not sync to disk.
package local
