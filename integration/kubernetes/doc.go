// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package kubernetes runs the example servers in clusters of a real kube-apiserver, once
// on our cache and once on the shipped one, and looks at the caches of that kube-apiserver
// itself. These clusters have no kubelet and no controllers, so that the servers are
// processes of the test, and their Endpoints are the test's to write. Other tests run
// what a person runs by bin/kubernetes up: controllers, scheduler and fake nodes,
// too, and cmd/relay before them.
//
// The package is a module of its own, for kube-apiserver is built from
// k8s.io/kubernetes: about ten minutes on two cores when nothing is cached. make
// e2e SUITE=kubernetes runs it; make test and make verify do not.
//
//   - install has the lines that put a kube-apiserver on the cache.
//   - apiserver is a kube-apiserver with a flag that chooses its cache; control has it
//     and the other servers of a control plane as commands of one binary.
//   - cluster is that binary, which runs a whole cluster (local) with fake nodes (nodes),
//     or clusters on either cache under a load (load): make
//     kubernetes compiles it.
//   - relayload puts thousands of informers on a relay and on its kube-apiserver.
//   - suites runs Kubernetes' own integration tests on either cache: make
//     kubernetes-test.
package kubernetes
