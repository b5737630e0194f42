// SPDX-License-Identifier: Apache-2.0

//go:build !k8s36

package metrics

import shipped "k8s.io/apiserver/pkg/storage/cacher/metrics"

// The shipped cacher has these since Kubernetes 1.37.
var (
	shippedFillErrors  = shipped.WatchCacheInitializationErrors
	shippedFillSeconds = shipped.WatchCacheInitializationDuration
)
