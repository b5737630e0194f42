// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package kubernetes runs the example servers in a cluster of a real kube-apiserver and
// nothing else: no kubelet and no controllers, so that the servers are processes of the
// test, and their Endpoints are the test's to write.
//
// The package is a module of its own, for kube-apiserver is built from
// k8s.io/kubernetes: about ten minutes on two cores when nothing is cached. make kubernetes runs it; make test
// does not.
package kubernetes
