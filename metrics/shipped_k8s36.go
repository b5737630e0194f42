// SPDX-License-Identifier: Apache-2.0

//go:build k8s36

package metrics

import (
	kubemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/version"
)

// Kubernetes 1.36 has no such metrics. An unregistered metric ignores all values.
var (
	shippedFillErrors  = kubemetrics.NewCounterVec(&kubemetrics.CounterOpts{Name: "fill_errors"}, nil)
	shippedFillSeconds = kubemetrics.NewHistogramVec(&kubemetrics.HistogramOpts{Name: "fill_seconds"}, nil)
)

// Does not compile with another version of Kubernetes, due to a duplicate key.
var _ = map[bool]struct{}{false: {}, version.DefaultKubeBinaryVersion == "1.36": {}}
