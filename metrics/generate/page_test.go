// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/metrics"
)

func TestEveryMetricHasATextAndEveryTextAMetric(t *testing.T) {
	list := metrics.List()
	require.Len(t, texts, len(list))
	for _, d := range list {
		require.NotEmpty(t, texts[d.Name].normal, d.Name)
	}
}

func TestPageIsFresh(t *testing.T) {
	written, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	require.Equal(t, string(page(metrics.List())), string(written), "docs/metrics.md is stale: run make generate")
}
