// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package kubernetes runs the example servers in clusters of a real kube-apiserver, once
// on our cache and once on the shipped one, and looks at the caches of that kube-apiserver
// itself. Nothing else is there: no kubelet and no controllers, so that the servers are
// processes of the test, and their Endpoints are the test's to write.
//
// The package is a module of its own, for kube-apiserver is built from
// k8s.io/kubernetes: about ten minutes on two cores when nothing is cached. make
// kubernetes runs it; make test does not.
//
//   - install has the lines that put a kube-apiserver on the cache.
//   - apiserver is a kube-apiserver with a flag that chooses its cache.
//   - suites runs Kubernetes' own integration tests on either cache: make
//     kubernetes-test.
package kubernetes
