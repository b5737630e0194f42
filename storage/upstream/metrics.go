// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// The watch was shown to be as fresh as reads needed.
	proofHeld = "held"
	// The upstream responded without proving anything, or did not respond.
	proofFailed     = "failed"
	proofUnanswered = "unanswered"
)

// metrics are the counters of one resource.
type metrics struct {
	proofs      *prometheus.CounterVec
	passedReads prometheus.Counter
}

// newMetrics registers counters, shared by the stores of all resources, and returns those of one
// resource.
func newMetrics(registerer prometheus.Registerer, resource schema.GroupResource) (*metrics, error) {
	if registerer == nil {
		registerer = prometheus.NewRegistry()
	}
	proofs, err := counters(registerer, "watchcache_upstream_proofs_total",
		"Proofs that a watch has everything that the upstream had: held, failed or unanswered.", "outcome")
	if err != nil {
		return nil, err
	}
	unproven, err := counters(registerer, "watchcache_upstream_unproven_reads_total",
		"Questions of reads whether the upstream proves freshness, which it was found to be unable to: such reads go to the upstream.")
	if err != nil {
		return nil, err
	}
	of := prometheus.Labels{"group": resource.Group, "resource": resource.Resource}
	m := &metrics{proofs: proofs.MustCurryWith(of), passedReads: unproven.With(of)}
	for _, outcome := range []string{proofHeld, proofFailed, proofUnanswered} {
		m.proofs.WithLabelValues(outcome)
	}
	return m, nil
}

// counters returns the registered vector of this name, registering it if needed.
func counters(registerer prometheus.Registerer, name, help string, labels ...string) (*prometheus.CounterVec, error) {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"group", "resource"}, labels...))
	err := registerer.Register(vec)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if same, ok := there.ExistingCollector.(*prometheus.CounterVec); ok {
			return same, nil
		}
	}
	return vec, err
}
