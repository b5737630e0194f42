// SPDX-License-Identifier: Apache-2.0

//go:build k8s36

package metrics_test

import (
	"strings"
)

// The shipped cacher of Kubernetes 1.36 counts its lists with its own metrics only,
// and neither times nor errors of its initializations.
func registerShippedStorage() {}

// shippedHas reports whether the shipped cacher has the metric, named without apiserver_.
func shippedHas(name string) bool {
	return !strings.HasPrefix(name, "storage_list_") &&
		name != "watch_cache_initialization_errors_total" && name != "watch_cache_initialization_duration_seconds"
}
