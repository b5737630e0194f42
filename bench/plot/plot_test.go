// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// The plots in the tree are those of the figures in the tree.
func TestPlotsAreFresh(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, run([]string{"-from", filepath.Join(root, "bench/results/reports.md"), "-tuning", filepath.Join(root, "bench/results/tuning.md"), "-kubernetes", filepath.Join(root, "bench/results/kubernetes.md"), "-soak", filepath.Join(root, "bench/results/soak.md"), "-to", dir}))
	drawn, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	require.NoError(t, err)
	there, err := filepath.Glob(filepath.Join(root, "docs/images/*.svg"))
	require.NoError(t, err)
	require.Len(t, drawn, len(there), "stale: go run ./bench/plot")
	for _, name := range drawn {
		want, err := os.ReadFile(name)
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(root, "docs/images", filepath.Base(name)))
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "stale: go run ./bench/plot")
		decoder := xml.NewDecoder(strings.NewReader(string(got)))
		for {
			if _, err := decoder.Token(); err != nil {
				require.True(t, errors.Is(err, io.EOF), "%s: %v", name, err)
				break
			}
		}
	}
}
