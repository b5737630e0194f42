// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// requirement is one of a go.mod.
type requirement struct {
	Path, Version string
	Indirect      bool
}

func requirementsOf(modfile string) ([]requirement, error) {
	out, err := output("go", "mod", "edit", "-json", modfile)
	if err != nil {
		return nil, err
	}
	var mod struct{ Require []requirement }
	if err := json.Unmarshal([]byte(out), &mod); err != nil {
		return nil, fmt.Errorf("%s: %w", modfile, err)
	}
	return mod.Require, nil
}

// ofKubernetes reports whether Kubernetes chooses the version of a module. Those of
// its own minor are set; the others follow from what these require.
func ofKubernetes(r requirement) bool {
	return strings.HasPrefix(r.Path, "k8s.io/") || strings.HasPrefix(r.Path, "sigs.k8s.io/")
}

// staged reports whether a module is released with each version of Kubernetes.
func staged(r requirement, kubernetes string) bool {
	return strings.HasPrefix(r.Path, "k8s.io/") && r.Version == kubernetes
}

// requirements compares the modfile with go.mod: the modules of Kubernetes are in the
// held version, and all else that both require directly is the same. A requirement of
// what is left out is in go.mod only.
func (m minor) requirements() error {
	ours, err := requirementsOf("go.mod")
	if err != nil {
		return err
	}
	theirs, err := requirementsOf(m.modfile())
	if err != nil {
		return err
	}
	if problems := m.compare(ours, theirs); len(problems) > 0 {
		return fmt.Errorf("%s is not what go run ./hack/versions tidy writes:\n\t%s", m.modfile(), strings.Join(problems, "\n\t"))
	}
	return nil
}

func (m minor) compare(ours, theirs []requirement) (problems []string) {
	newest, versions := kubernetesOf(ours), map[string]string{}
	for _, r := range theirs {
		versions[r.Path] = r.Version
		if staged(r, newest) {
			problems = append(problems, fmt.Sprintf("%s is %s: want %s", r.Path, r.Version, m.kubernetes))
		}
	}
	for _, r := range ours {
		want := r.Version
		switch {
		case r.Indirect, ofKubernetes(r) && !staged(r, newest):
			continue
		case staged(r, newest):
			want = m.kubernetes
		}
		if m.newer && !staged(r, newest) {
			continue // the newer Kubernetes requires it in a newer version
		}
		if got, ok := versions[r.Path]; got != want && (ok || staged(r, newest)) {
			problems = append(problems, fmt.Sprintf("%s is %q: want %s", r.Path, got, want))
		}
	}
	return problems
}

func kubernetesOf(requirements []requirement) string {
	for _, r := range requirements {
		if r.Path == "k8s.io/apiserver" {
			return r.Version
		}
	}
	return ""
}

// tidy writes modfile and sums: the direct requirements of go.mod, with Kubernetes in
// the held version, tidied in the tree of a release. In ./ the go command would read
// the files of the other minors, too, and raise Kubernetes for them.
func (m minor) tidy() error {
	dir, err := os.MkdirTemp("", "versions-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tree := filepath.Join(dir, "tree")
	if err := m.tree(".", tree); err != nil {
		return err
	}
	for name, from := range map[string]string{"go.mod": "go.mod", "go.sum": "go.sum"} {
		if err := copyFile(from, filepath.Join(tree, name), nil); err != nil {
			return err
		}
	}
	all, err := requirementsOf("go.mod")
	if err != nil {
		return err
	}
	newest := kubernetesOf(all)
	edits, tidied := []string{"mod", "edit"}, []string{"mod", "tidy"}
	if m.newer {
		// -e: not every module that tests of Kubernetes' need is published with a beta.
		tidied = append(tidied, "-e")
		edits = append(edits, "-go="+strings.TrimPrefix(m.toolchain, "go"))
		for _, r := range m.replace {
			edits = append(edits, "-replace="+r)
		}
	}
	for _, r := range all {
		switch {
		case !r.Indirect && staged(r, newest):
			edits = append(edits, "-require="+r.Path+"@"+m.kubernetes)
		case r.Indirect, ofKubernetes(r):
			edits = append(edits, "-droprequire="+r.Path)
		}
	}
	for _, args := range [][]string{edits, tidied} {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = tree, os.Stdout, os.Stderr
		cmd.Env = append(m.environment(), "GOWORK=off")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go %s in the tree of a release: %w", strings.Join(args[:2], " "), err)
		}
	}
	if err := copyFile(filepath.Join(tree, "go.mod"), m.modfile(), nil); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(tree, "go.sum"), m.sums(), nil); err != nil {
		return err
	}
	return m.requirements()
}

// raise writes current.mod: the versions that are current, of the same minor of Kubernetes.
// go.mod has the lowest.
func raise() error {
	all, err := requirementsOf("go.mod")
	if err != nil {
		return err
	}
	lowest := kubernetesOf(all)
	minor := lowest[:strings.LastIndexByte(lowest, '.')]
	get := []string{"get", "-modfile=" + raised.modfile()}
	for _, r := range all {
		switch {
		case staged(r, lowest):
			get = append(get, r.Path+"@"+minor)
		case !r.Indirect && !ofKubernetes(r): // Kubernetes chooses its own
			get = append(get, r.Path+"@latest")
		}
	}
	if err := errors.Join(copyFile("go.mod", raised.modfile(), nil), copyFile("go.sum", raised.sums(), nil)); err != nil {
		return err
	}
	for _, args := range [][]string{get, {"mod", "tidy", "-modfile=" + raised.modfile()}} {
		cmd := exec.Command("go", args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go %s: %w", args[0], err)
		}
	}
	return nil
}
