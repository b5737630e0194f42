// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

const (
	// nativeFactor bounds how much longer each native bucket is than the one
	// below, and nativeBuckets how many of them a histogram keeps: with more, it
	// makes them coarser. The bounds are small because each series has them.
	nativeFactor  = 1.3
	nativeBuckets = 48
)

// lazyHistogram is a histogram that is made with its first observation: one
// takes more memory than all counters of a cache.
type lazyHistogram struct {
	made atomic.Pointer[madeHistogram]
}

type madeHistogram struct{ prometheus.Histogram }

// observe records a value in the histogram of the metric with the name.
func (h *lazyHistogram) observe(name Name, v float64) {
	made := h.made.Load()
	if made == nil {
		h.made.CompareAndSwap(nil, newHistogram(name))
		made = h.made.Load()
	}
	made.Observe(v)
}

func newHistogram(name Name) *madeHistogram {
	i := slices.IndexFunc(specs, func(s spec) bool { return s.Name == name })
	return &madeHistogram{prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: string(name), Help: specs[i].Help, Buckets: specs[i].Buckets,
		NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeBuckets,
		NativeHistogramMaxExemplars: -1,
	})}
}

// labelled is a histogram under the labels of its series.
type labelled struct {
	histogram *madeHistogram
	desc      *prometheus.Desc
	labels    []*dto.LabelPair
}

// Desc implements prometheus.Metric.
func (l labelled) Desc() *prometheus.Desc { return l.desc }

// Write implements prometheus.Metric.
func (l labelled) Write(out *dto.Metric) error {
	if err := l.histogram.Write(out); err != nil {
		return err
	}
	out.Label = l.labels
	return nil
}
