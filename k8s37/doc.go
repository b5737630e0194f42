// SPDX-License-Identifier: Apache-2.0

// Package k8s37 is for its name: who imports it has the watch cache for Kubernetes 1.37,
// k8s.io v0.37.
//
//	import _ "github.com/kube-watchcache/watchcache/k8s37"
//
// A version or a checkout for another minor of Kubernetes has a package of another name
// in its place. So go mod tidy fails, where it would raise the requirements of the server
// to that other minor without a word.
package k8s37
