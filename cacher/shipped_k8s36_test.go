// SPDX-License-Identifier: Apache-2.0

//go:build k8s36

package cacher_test

// The shipped cacher of Kubernetes 1.36 counts no errors of its initializations, and
// its lists with its own metrics only.
const shippedCountsFillErrors = false

func registerShippedStorage() {}
