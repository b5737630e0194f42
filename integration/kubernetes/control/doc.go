// SPDX-License-Identifier: Apache-2.0

// Package control has the servers of a control plane as commands, so that one binary can
// be any of them: a process runs one. All but kube-apiserver's choice of a watch cache is
// Kubernetes' and etcd's.
package control
