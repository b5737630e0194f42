// SPDX-License-Identifier: Apache-2.0

//go:build k8s36

package metrics

import (
	kubemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/version"
)

// The shipped cacher of Kubernetes 1.36 has no such metrics. A metric that is
// registered nowhere takes nothing and is not shown.
var (
	shippedFillErrors  = kubemetrics.NewCounterVec(&kubemetrics.CounterOpts{Name: "fill_errors"}, nil)
	shippedFillSeconds = kubemetrics.NewHistogramVec(&kubemetrics.HistogramOpts{Name: "fill_seconds"}, nil)
)

// With another version of Kubernetes the tag does not compile: one key is there twice.
var _ = map[bool]struct{}{false: {}, version.DefaultKubeBinaryVersion == "1.36": {}}
