// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// etcdPackage is the main package of etcd, at the version of go.mod.
const etcdPackage = "go.etcd.io/etcd/server/v3"

// binary is the compiled etcd.
type binary struct {
	path string
	hash string // of its content, hexadecimal
}

// program is etcd. The file stays, under a name that the next process
// overwrites.
var program = child.Program{Variable: "WATCHCACHE_ETCD_BINARY", Compile: func() (string, error) {
	return buildStatic("etcd", etcdPackage)
}}

var etcdBinary = sync.OnceValues(func() (binary, error) {
	path, err := program.Path()
	if err != nil {
		return binary{}, err
	}
	hash, err := hashFile(path)
	return binary{path: path, hash: hash}, err
})

// buildStatic compiles a main package into a file whose name begins with name.
func buildStatic(name, pkg string) (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("watchcache-etcd-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	// Several packages' tests may build at once, and run what they built:
	// each writes a file of its own and moves it into place.
	tmp, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	built := filepath.Join(tmp, name)
	// Without cgo the binary needs nothing from the image that it runs in.
	env := []string{"CGO_ENABLED=0", "GOFLAGS=" + withoutRace(os.Getenv("GOFLAGS"))}
	if err := child.GoBuild("", env, "-o", built, pkg); err != nil {
		return "", err
	}
	hash, err := hashFile(built)
	if err != nil {
		return "", err
	}
	file := fmt.Sprintf("%s-%s-%s-%s", name, runtime.GOOS, runtime.GOARCH, hash[:12])
	path := filepath.Join(dir, file)
	if err := os.Rename(built, path); err != nil {
		return "", err
	}
	removeOthers(dir, name, file)
	return path, nil
}

// withoutRace drops the race detector from GOFLAGS: it needs cgo.
func withoutRace(flags string) string {
	var kept []string
	for _, f := range strings.Fields(flags) {
		if f != "-race" && f != "-race=true" {
			kept = append(kept, f)
		}
	}
	return strings.Join(kept, " ")
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// removeOthers removes binaries that are older than a day: another clone of the
// repository may be about to run a younger one, and one that runs goes on running.
func removeOthers(dir, name, keep string) {
	old, _ := filepath.Glob(filepath.Join(dir, name+"-*"))
	for _, path := range old {
		info, err := os.Stat(path)
		if err == nil && filepath.Base(path) != keep && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.Remove(path)
		}
	}
}

// noSync is etcd's flag that spares the waits for the disk.
const noSync = "--unsafe-no-fsync"

// arguments gives etcd's arguments for a server that listens on listen, as it
// sees itself, and keeps its data in dir.
func (c Config) arguments(listen, dir string) []string {
	args := []string{
		"--name=test",
		"--data-dir=" + dir,
		"--listen-client-urls=" + listen,
		"--advertise-client-urls=" + listen,
		// A single member talks to no peer: any free port will do.
		"--listen-peer-urls=http://127.0.0.1:0",
		"--log-level=warn",
	}
	if !c.Sync {
		args = append(args, noSync)
	}
	if c.Streams > 0 {
		args = append(args, fmt.Sprintf("--max-concurrent-streams=%d", c.Streams))
	}
	return args
}
