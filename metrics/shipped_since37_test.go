// SPDX-License-Identifier: Apache-2.0

//go:build !k8s36

package metrics_test

import (
	storagemetrics "k8s.io/apiserver/pkg/storage/metrics"
)

func registerShippedStorage() { storagemetrics.Register() }

// shippedHas reports whether the shipped cacher has the metric, named without apiserver_.
func shippedHas(string) bool { return true }
