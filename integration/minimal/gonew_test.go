// SPDX-License-Identifier: Apache-2.0

//go:build unix

package minimal

import (
	"archive/zip"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGonew copies the example with gonew, from a module proxy of one module, and
// with hack/new-server.sh: apart from the place where go.mod finds watchcache, the
// files are the same, and none names the example's own module.
func TestGonew(t *testing.T) {
	const module, published = "example.com/widgets", "github.com/kube-watchcache/watchcache/examples/minimal"
	dir := t.TempDir()
	gonew, proxy := filepath.Join(dir, "gonew"), filepath.Join(dir, "proxy")
	publish(t, filepath.Join(proxy, published, "@v"), published, "v0.37.0")
	shell(t, root+"/hack/tools", "go build -o "+gonew+" golang.org/x/tools/cmd/gonew")
	shell(t, dir, gonew+" "+published+" "+module+" gonew.out", "GOPROXY=file://"+filepath.ToSlash(proxy),
		"GONOSUMDB=*", "GOMODCACHE="+filepath.Join(dir, "modules"), "GOFLAGS=-modcacherw")
	shell(t, root, "hack/new-server.sh "+module+" "+filepath.Join(dir, "script.out"))

	byGonew, byScript := read(t, filepath.Join(dir, "gonew.out")), read(t, filepath.Join(dir, "script.out"))
	checkout, err := filepath.EvalSymlinks(root)
	require.NoError(t, err)
	checkout, err = filepath.Abs(checkout)
	require.NoError(t, err)
	require.Contains(t, byScript["go.mod"], "watchcache => "+checkout+"\n")
	byScript["go.mod"] = strings.ReplaceAll(byScript["go.mod"], "=> "+checkout, "=> ../..")
	require.Equal(t, byGonew, byScript)
	for name, content := range byScript {
		if strings.HasSuffix(name, ".go") || name == "go.mod" {
			require.NotContains(t, content, `"`+published, name)
		}
	}

	// The script leaves a directory alone that exists.
	out := shell(t, root, "hack/new-server.sh "+module+" "+filepath.Join(dir, "script.out")+" 2>&1 || true")
	require.Contains(t, out, "exists already")
}

// publish makes the folder of a module proxy that has one version of the example.
func publish(t *testing.T, folder, module, version string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(folder, 0o700))
	archive, err := os.Create(filepath.Join(folder, version+".zip"))
	require.NoError(t, err)
	defer archive.Close()
	writer := zip.NewWriter(archive)
	files := read(t, example)
	for name, content := range files {
		file, err := writer.Create(module + "@" + version + "/" + name)
		require.NoError(t, err)
		_, err = file.Write([]byte(content))
		require.NoError(t, err)
	}
	require.NoError(t, writer.Close())
	for name, content := range map[string]string{
		"list":            version + "\n",
		version + ".info": `{"Version":"` + version + `"}`,
		version + ".mod":  files["go.mod"],
	} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
	}
}

// read returns the files below dir, without those that a running server has made.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && (d.Name() == ".run" || d.Name() == "apiserver.local.config") {
				return fs.SkipDir
			}
			return err
		}
		content, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		files[filepath.ToSlash(rel)] = string(content)
		return err
	}))
	return files
}
