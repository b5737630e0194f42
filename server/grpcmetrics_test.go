// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"

	"github.com/stretchr/testify/require"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/metrics/legacyregistry"
)

// callsOf is what the server's registry counts of a method of etcd.
func callsOf(t *testing.T, service, method string) (calls float64) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "grpc_client_started_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["grpc_service"] == service && labels["grpc_method"] == method {
				calls += m.GetCounter().GetValue()
			}
		}
	}
	return calls
}

// REGRESSIONS 146: the registry of the server counts what caches ask of etcd, where it
// counts the requests of the shipped storage.
func TestCallsOfEtcdAreCounted(t *testing.T) {
	config := &genericapiserver.Config{RESTOptionsGetter: getterFor(startEtcd(t))}
	require.NoError(t, Install(config))
	watches, ranges := callsOf(t, "etcdserverpb.Watch", "Watch"), callsOf(t, "etcdserverpb.KV", "Range")
	registryOf(t, config.RESTOptionsGetter)
	require.Greater(t, callsOf(t, "etcdserverpb.Watch", "Watch"), watches)
	require.Greater(t, callsOf(t, "etcdserverpb.KV", "Range"), ranges)
}
