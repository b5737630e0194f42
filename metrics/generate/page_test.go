// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/metrics"
)

func TestPageIsFresh(t *testing.T) {
	written, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	require.Equal(t, string(page(metrics.List())), string(written), "docs/metrics.md is stale: run make generate")
}
