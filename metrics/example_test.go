// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"log"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/metrics"
)

// The metrics of the caches that a decorator makes, on a registry of your own.
// With server.Install they are on the server's /metrics without this.
func ExampleNew() {
	registry := prometheus.NewRegistry()
	collectors, err := metrics.New(registry)
	if err != nil {
		log.Fatal(err) // another collector has one of the names
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))

	decorator := cacher.Decorator(cacher.WithMetrics(collectors))
	fmt.Println(decorator != nil)
	// Output: true
}
