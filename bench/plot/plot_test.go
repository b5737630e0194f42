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

// A table as bench prints it, in a page with other tables.
const page = "# Figures\n\n| work | before | after |\n|---|---|---|\n| one event | 1 | 2 |\n\n" +
	"| work | ours | shipped | floor | ours / shipped | ours / floor | goal | |\n|---|---|---|---|---|---|---|---|\n" +
	"| one event: at 60/s: CPU | 226 µs (218 µs..272 µs) | 24.1 ms (18.8 ms..26.3 ms) | – | 1/90 | – | ≤ 1 | met |\n" +
	"| – closed | 0 | 100 | 2 | – | – | – | – |\n" +
	"| GET | -133 ns (-101 µs..11.2 µs) | 1.5 s | | | | | |\n\n| a | 1 |\n"

func TestParse(t *testing.T) {
	require.Equal(t, figures{
		"one event: at 60/s": {
			"CPU":    {ours: {226e3, 218e3, 272e3}, shipped: {24.1e6, 18.8e6, 26.3e6}},
			"closed": {ours: {0, 0, 0}, shipped: {100, 100, 100}, floor: {2, 2, 2}},
		},
		"GET": {"GET": {ours: {-133, -101e3, 11.2e3}, shipped: {1.5e9, 1.5e9, 1.5e9}}},
	}, parse(page))
}
