// SPDX-License-Identifier: Apache-2.0

package arrows

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each case is a file that breaks one rule, or none, and what the checker has
// to say about it: want is contained in the only breach; "" is no breach.
func TestChecker(t *testing.T) {
	const ok = license + "\n\n"
	for _, c := range []struct {
		name, path, src, want string
	}{
		{"arrow down", "cacher/a.go", ok + "package cacher\nimport _ \"" + module + "/watchcache\"", ""},
		{"arrow up", "watchcache/a.go", ok + "package watchcache\nimport _ \"" + module + "/cacher\"", "watchcache imports cacher: there is no such arrow"},
		{"arrow across", "storage/etcd3/a.go", ok + "package etcd3\nimport _ \"" + module + "/metrics\"", "storage/etcd3 imports metrics: there is no such arrow"},
		{"unknown package", "surprise/a.go", ok + "package surprise", "surprise is not in the table"},
		{"embedded in a server", "server/a.go", ok + "package server\nimport _ \"" + module + "/storage/etcd3/embedded\"", "it is for tests, examples and integration"},
		{"test support in a server", "cacher/a.go", ok + "package cacher\nimport _ \"" + module + "/internal/memstore\"", "it is for tests"},
		{"goroutine", "watchcache/a.go", ok + "package watchcache\nfunc f() { go f() }", "a.go:4:12: watchcache starts a goroutine"},
		{"clock", "watchcache/a.go", ok + "package watchcache\nimport \"time\"\nvar now = time.Now", "reads the clock with time.Now"},
		{"clock under another name", "watchcache/a.go", ok + "package watchcache\nimport x \"time\"\nfunc f(t x.Time) x.Duration { return x.Since(t) }", "reads the clock with time.Since"},
		{"init", "metrics/a.go", ok + "package metrics\nfunc init() {}", "init function"},
		{"empty name of a folder", "cacher/util/a.go", ok + "package other", "the name says nothing"},
		{"no license", "cacher/a.go", "package cacher\n", "the first line is not"},
		{"testdata", "cacher/testdata/a.go", "package util", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			files, err := readTree(write(t, map[string]string{c.path: c.src}))
			require.NoError(t, err)
			found := check(files)
			if c.want == "" {
				require.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			require.Contains(t, found[0], c.want)
		})
	}
}

// write puts files under a new folder.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, src := range files {
		p := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(src), 0o644))
	}
	return dir
}
