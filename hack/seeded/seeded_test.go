// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sources is a Go with one file.
func sources(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "runtime"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "runtime", "select.go"), []byte("j := chance()\nk := chance()\n"), 0o644))
	return dir
}

// A version of Go that lacks a place must not be used with what another one had.
func TestAnotherVersionOfGoIsNamed(t *testing.T) {
	from, to := sources(t), t.TempDir()
	require.NoError(t, write(to, from, nil))
	err := write(to, from, []edit{{"runtime/select.go", "chance()", "seeded()", 1}})
	require.ErrorContains(t, err, "runtime/select.go")
	require.ErrorContains(t, err, `"chance()" 2 times, where 1 was expected`)
	for _, name := range []string{"overlay.json", "flags"} {
		assert.NoFileExists(t, filepath.Join(to, name))
	}
}
