// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	kubernetes = "k8s.io/kubernetes"
	watchcache = "github.com/kube-watchcache/watchcache"
	suites     = watchcache + "/integration/kubernetes"
)

// environment is that of the go command in the copy: its go.mod is completed from the
// go.sum files of Kubernetes and of this repository. Without cgo, as published.
func environment() []string {
	return append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -buildvcs=false", "CGO_ENABLED=0")
}

// published is where the go command has Kubernetes, which it downloads if it has not.
func published(ctx context.Context) (module struct{ Version, Dir string }, err error) {
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", kubernetes).Output()
	if err != nil {
		return module, fmt.Errorf("go mod download %s: %w", kubernetes, err)
	}
	return module, json.Unmarshal(out, &module)
}

// prepare makes the copy of Kubernetes, and etcd beside it, unless both are there.
func (s *settings) prepare(ctx context.Context) (dir string, err error) {
	module, err := published(ctx)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(s.dir, module.Version)
	stamp, err := s.stamp(module.Version)
	if err != nil {
		return "", err
	}
	lock, err := s.share()
	if err != nil {
		return "", err
	}
	if was, _ := os.ReadFile(filepath.Join(dir, "watchcache.stamp")); !bytes.Equal(was, stamp) {
		if err := lock.exclusive(); err != nil {
			return "", err
		}
		fmt.Fprintf(os.Stderr, "copying %s %s to %s\n", kubernetes, module.Version, dir)
		if err := s.copyModule(ctx, module.Dir, dir); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, "watchcache.stamp"), stamp, 0o644); err != nil {
			return "", err
		}
		if err := lock.shared(); err != nil {
			return "", err
		}
	}
	if err := s.linkTestdata(ctx, dir); err != nil {
		return "", err
	}
	etcd := exec.CommandContext(ctx, "go", "build", "-C", s.root, "-o", filepath.Join(s.dir, "bin", "etcd"), "go.etcd.io/etcd/server/v3")
	etcd.Env, etcd.Stderr = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0"), os.Stderr
	if err := etcd.Run(); err != nil {
		return "", fmt.Errorf("compile etcd: %w", err)
	}
	return dir, nil
}

// linkTestdata puts the published k8s.io/api where a test of package etcd looks for what
// earlier versions have stored: the module has no staging folder.
func (s *settings) linkTestdata(ctx context.Context, dir string) error {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api")
	list.Dir, list.Env = dir, environment()
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list -m k8s.io/api: %w", err)
	}
	link := filepath.Join(dir, "staging/src/k8s.io/api")
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(strings.TrimSpace(string(out)), link); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// stamp is what a copy is made of.
func (s *settings) stamp(version string) ([]byte, error) {
	stamp := fmt.Appendln(nil, version, s.root, insertions, sources())
	for _, name := range []string{"go.mod", "go.sum", "integration/kubernetes/go.mod", "integration/kubernetes/go.sum"} {
		file, err := os.ReadFile(filepath.Join(s.root, name))
		if err != nil {
			return nil, err
		}
		stamp = append(stamp, file...)
	}
	return stamp, nil
}

func (s *settings) copyModule(ctx context.Context, from, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		return err
	}
	// The module cache is read-only, and so is what is copied from it; published modules
	// have no scripts that may be run, which some tests do. A vendor folder and a
	// workspace would be used instead of go.mod.
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() || strings.HasSuffix(path, ".sh") && !strings.Contains(path, "not-executable") {
			return os.Chmod(path, 0o755)
		}
		return os.Chmod(path, 0o644)
	})
	for _, name := range []string{"vendor", "staging", "go.work", "go.work.sum"} {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	if err != nil {
		return err
	}
	if err := patch(dir); err != nil {
		return err
	}
	return s.writeModule(ctx, dir)
}

// writeModule gives the copy a go.mod whose libraries are the published ones that this
// module has, in the place of Kubernetes' staging folders, and this repository.
func (s *settings) writeModule(ctx context.Context, dir string) error {
	ours := filepath.Join(s.root, "integration/kubernetes")
	var mod struct {
		Replace []struct {
			Old, New struct{ Path, Version string }
		}
	}
	out, err := exec.CommandContext(ctx, "go", "mod", "edit", "-json", filepath.Join(ours, "go.mod")).Output()
	if err != nil {
		return fmt.Errorf("go mod edit: %w", err)
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		return err
	}
	edit := []string{"mod", "edit", "-require=" + watchcache + "@v0.0.0", "-replace=" + watchcache + "=" + s.root,
		"-require=" + suites + "@v0.0.0", "-replace=" + suites + "=" + ours}
	for _, r := range mod.Replace {
		if strings.HasPrefix(r.Old.Path, "k8s.io/") {
			edit = append(edit, "-replace="+r.Old.Path+"="+r.New.Path+"@"+r.New.Version)
		}
	}
	if err := command(ctx, dir, "go", edit...); err != nil {
		return err
	}
	sums := map[string]bool{}
	for _, file := range []string{filepath.Join(dir, "go.sum"), filepath.Join(s.root, "go.sum"), filepath.Join(ours, "go.sum")} {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, line := range strings.SplitAfter(string(text), "\n") {
			sums[line] = true
		}
	}
	var all []string
	for line := range sums {
		all = append(all, line)
	}
	slices.Sort(all)
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), []byte(strings.Join(all, "")), 0o644); err != nil {
		return err
	}
	return command(ctx, dir, "go", "list", "-deps", "-test", "-f", "{{if .Error}}{{.Error}}{{end}}", "./cmd/kube-apiserver/app", "./test/integration/job")
}

func command(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Env, c.Stderr = dir, environment(), os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}
