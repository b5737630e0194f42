// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sample

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// TestRelease publishes this repository in a module proxy made of files, and has the sample
// API server require it by the page's command, without a replace directive.
func TestRelease(t *testing.T) {
	get, _ := getCommands(t)
	version, environment := publish(t)
	dir, build, run, check := followPage(t)
	prefix := strings.Join(environment, " ") + " "
	require.Contains(t, build, "go mod tidy\n")
	out := shell(t, dir, prefix+get+"\n"+prefix+strings.ReplaceAll(build, "\n", "\n"+prefix))
	require.Empty(t, changed(t, dir), out)
	require.Contains(t, requirements(t, filepath.Join(dir, "go.mod")), []string{"\tgithub.com/kube-watchcache/watchcache " + version, "github.com/kube-watchcache/watchcache", version})
	require.NotContains(t, shell(t, dir, "cat go.mod"), "replace")
	serveAsCluster(t, dir, run, check)
}

// publish returns a release of this repository's files and the environment in
// which the go command finds it before it asks the usual proxy for other modules.
func publish(t *testing.T) (version string, environment []string) {
	t.Helper()
	var files []zip.File
	for name := range strings.SplitSeq(shell(t, root, "git -c safe.directory='*' ls-files -z --cached --others --exclude-standard"), "\x00") {
		if at := filepath.Join(root, name); name != "" && !missing(at) {
			files = append(files, file{name, at})
		}
	}
	// The version is of the content: what is left in the module cache is never another one.
	m := module.Version{Path: "github.com/kube-watchcache/watchcache", Version: "v0.37.0"}
	var content bytes.Buffer
	require.NoError(t, zip.Create(&content, m, files))
	m.Version = fmt.Sprintf("v0.37.%d", crc32.ChecksumIEEE(content.Bytes()))
	content.Reset()
	require.NoError(t, zip.Create(&content, m, files))
	proxy := t.TempDir()
	dir := filepath.Join(proxy, m.Path, "@v")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	for name, text := range map[string]string{
		"list": m.Version + "\n", m.Version + ".info": fmt.Sprintf(`{"Version": %q}`, m.Version), m.Version + ".mod": string(mod), m.Version + ".zip": content.String(),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	t.Cleanup(func() {
		cache := strings.TrimSpace(shell(t, ".", "go env GOMODCACHE"))
		kept, err := filepath.Glob(filepath.Join(cache, "cache/download", m.Path, "@v", m.Version+".*"))
		require.NoError(t, err)
		for _, path := range append(kept, filepath.Join(cache, m.Path+"@"+m.Version)) {
			require.NoError(t, os.RemoveAll(path))
		}
	})
	usual := strings.TrimSpace(shell(t, ".", "go env GOPROXY"))
	// Without cgo the build shares what is compiled with other tests' programs.
	return m.Version, []string{"GOPROXY=file://" + proxy + "," + usual, "GONOSUMDB=" + m.Path, "GOFLAGS=-modcacherw", "CGO_ENABLED=0"}
}

func missing(path string) bool {
	_, err := os.Lstat(path)
	return os.IsNotExist(err)
}

// file is a zip.File.
type file struct{ name, at string }

func (f file) Path() string                 { return f.name }
func (f file) Lstat() (fs.FileInfo, error)  { return os.Lstat(f.at) }
func (f file) Open() (io.ReadCloser, error) { return os.Open(f.at) }
