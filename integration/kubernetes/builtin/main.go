// SPDX-License-Identifier: Apache-2.0

// Command builtin copies Kubernetes with one line more, with which a kube-apiserver can
// answer lists of its built-in APIs from kept bytes, and prints the go.mod that takes the
// copy in the place of the module:
//
//	go build -modfile="$(go run ./builtin DIR)" ./cluster
//
// A kube-apiserver makes and installs its groups in one loop, which shows them to nobody.
// The line has package install see each of them. A copy that is there is used again.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/insert"
)

const (
	kubernetes = "k8s.io/kubernetes"
	pkg        = "pkg/controlplane/apiserver"
	added      = `package apiserver

import "github.com/kube-watchcache/watchcache/integration/kubernetes/install"

var prepareGroup = install.BuiltinGroup()
`
)

// seen is in the loop, where a group is complete.
var seen = insert.Line{
	File: pkg + "/apis.go", Before: `klog.V(1).Infof("Enabling API group %q.", groupName)`,
	Text: "if err := prepareGroup(s.GenericAPIServer, &apiGroupInfo); err != nil {\nreturn err\n}\n",
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "builtin: want the folder to write to")
		os.Exit(2)
	}
	name, err := write(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "builtin:", err)
		os.Exit(1)
	}
	fmt.Println(name)
}

func write(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	// A module that nothing was compiled of yet has no folder before it is downloaded.
	downloaded, err := run("go", "mod", "download", "-json", kubernetes)
	if err != nil {
		return "", err
	}
	var module struct{ Dir, Version string }
	if err := json.Unmarshal([]byte(downloaded), &module); err != nil {
		return "", err
	}
	// The name is of all that the copy is made of: a copy of another line is another one.
	to := filepath.Join(dir, fmt.Sprintf("kubernetes-%s-%x", module.Version, crc32.ChecksumIEEE(fmt.Append(nil, seen, added))))
	if _, err := os.Stat(filepath.Join(to, pkg, "watchcache.go")); errors.Is(err, fs.ErrNotExist) {
		if err := copyModule(module.Dir, to); err != nil {
			return "", err
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			return "", err
		}
	}
	modfile := filepath.Join(dir, "go.mod")
	_, err = run("go", "mod", "edit", "-replace="+kubernetes+"="+to, modfile)
	return modfile, err
}

// copyModule copies the files of a module, and adds the line. What is written last shows
// that the copy is complete.
func copyModule(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	return errors.Join(seen.Insert(to), os.WriteFile(filepath.Join(to, pkg, "watchcache.go"), []byte(added), 0o644))
}

func run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w; run in integration/kubernetes", strings.Join(cmd.Args, " "), err)
	}
	return string(out), nil
}
