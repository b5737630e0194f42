// SPDX-License-Identifier: Apache-2.0

//go:build unix

package kubernetes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pandas is a custom resource, and six objects of it: lists of fewer than four items are
// not kept.
const pandas = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: pandas.zoo.example.com}
spec:
  group: zoo.example.com
  scope: Namespaced
  names: {kind: Panda, plural: pandas, singular: panda}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
`

// testCaches looks at whose caches the three servers of a kube-apiserver have, and at
// lists and watches of each.
func testCaches(t *testing.T, c *cluster, on string) {
	c.apply(t, pandas)
	c.sh(t, "kubectl wait --for=condition=Established crd/pandas.zoo.example.com --timeout=3m && kubectl create namespace zoo")
	for i := range 6 {
		c.apply(t, fmt.Sprintf("apiVersion: zoo.example.com/v1\nkind: Panda\nmetadata: {name: p%d, namespace: zoo}\nspec: {size: %d}\n", i, i))
		c.sh(t, fmt.Sprintf("kubectl -n zoo create configmap c%d --from-literal=a=%d", i, i))
	}
	for range 3 { // the second list and those after it come from kept bytes
		require.Equal(t, "0 1 2 3 4 5", c.sh(t, "kubectl -n zoo get pandas -o 'jsonpath={.items[*].spec.size}'"))
		require.Equal(t, "0 1 2 3 4 5", c.sh(t, "kubectl -n zoo get configmaps -o 'jsonpath={.items[*].data.a}'"))
		require.Contains(t, c.sh(t, "kubectl -n zoo get pandas"), "NAME   SIZE\np0     0\n")
	}
	require.Equal(t, "6\n", c.sh(t, `kubectl get --raw '/apis/zoo.example.com/v1/pandas?limit=4' | grep -o '"remainingItemCount":2' > /dev/null
		kubectl -n zoo get pandas --chunk-size=4 -o name | wc -l`))
	watched := c.sh(t, `: > pandas
		kubectl -n zoo get pandas -w -o name > pandas & watch=$!
		trap 'kill $watch' EXIT
		until [ "$(wc -l < pandas)" -ge 6 ]; do kubectl get --raw /livez > /dev/null; done
		kubectl -n zoo delete panda p3 --wait=false > deleted
		until [ "$(wc -l < pandas)" -ge 7 ]; do kubectl get --raw /livez > /dev/null; done
		tail -1 pandas`)
	require.Equal(t, "panda.zoo.example.com/p3\n", watched)

	metrics := c.sh(t, "kubectl get --raw /metrics")
	for _, resource := range []string{
		`group="",resource="configmaps"`,                                    // the built-in APIs
		`group="zoo.example.com",resource="pandas"`,                         // custom resources
		`group="apiextensions.k8s.io",resource="customresourcedefinitions"`, // their definitions
		`group="apiregistration.k8s.io",resource="apiservices"`,             // the aggregator
	} {
		if series := "watchcache_objects{" + resource + "}"; on == ours {
			require.Contains(t, metrics, series)
		} else {
			require.NotContains(t, metrics, series)
		}
	}
	out := c.sh(t, "kubectl get --raw '/debug/watchcache?format=json&limit=0'")
	for _, resource := range []string{"configmaps", "pandas.zoo.example.com", "customresourcedefinitions.apiextensions.k8s.io", "apiservices.apiregistration.k8s.io"} {
		require.Equal(t, on == ours, strings.Contains(out, `"`+resource), "%s in %s", resource, out)
	}
	require.Equal(t, "ok", c.sh(t, "kubectl get --raw /readyz/watchcache"))
}
