// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/metrics"
)

// exportMetrics serves the metrics of the caches, without those of the API server
// around them, until the process ends, and writes its address into a file. Ten
// servers that render thousands of series every two seconds would leave a small
// machine no time for anything else.
func exportMetrics(file string) (cacher.Option, error) {
	registry := prometheus.NewRegistry()
	collectors, err := metrics.New(registry)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
	mux := http.NewServeMux()
	mux.Handle("/metrics", handler)
	go func() { _ = http.Serve(listener, mux) }() // ends with the process
	return cacher.WithMetrics(collectors), os.WriteFile(file, []byte(listener.Addr().String()), 0o600)
}
