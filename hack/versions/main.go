// SPDX-License-Identifier: Apache-2.0

// Versions checks the main module against the Kubernetes minors that it holds beside
// the one of go.mod, and makes what is released for them. From the root:
//
//	go run ./hack/versions build        compile the public packages
//	go run ./hack/versions check        check the types of everything with its tests
//	go run ./hack/versions test [ARGS]  run the tests of packages (ARGS are go test's)
//	go run ./hack/versions tidy         write hack/versions/k8s*.mod and .sum again
//	go run ./hack/versions current      write hack/versions/current.mod and .sum: go.mod with its dependencies raised
//	go run ./hack/versions tree DIR     write the tree of a release into an empty folder
//	go run ./hack/versions release NAME put that tree into a commit on the branch NAME
//
// With -minor k8s36 the command is for one of them, and check and test are for current.mod
// with -minor current. docs/adopting.md has the rule.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// held are the minors beside that of go.mod.
var held = []minor{
	{tag: "k8s36", kubernetes: "v0.36.0", without: olderLack},
	{
		tag: "k8s38", kubernetes: "v0.38.0-beta.0", newer: true, toolchain: "go1.27.0",
		imports: map[string]string{"sigs.k8s.io/structured-merge-diff/v6": "sigs.k8s.io/structured-merge-diff/v7"},
		// The newest that the module proxy serves.
		replace: []string{"sigs.k8s.io/structured-merge-diff/v7=sigs.k8s.io/structured-merge-diff/v7@v7.0.0"},
	},
}

// raised is that of go.mod, with the dependencies of current.mod.
var raised = minor{tag: "current", kubernetes: "of current.mod"}

// minor is a minor version of Kubernetes that the same sources hold.
type minor struct {
	tag        string // the build tag, and the name of modfile and sums
	kubernetes string // of the modules of k8s.io that go.mod requires in its own minor
	// newer is true of a minor above that of go.mod. Its dependencies are raised as
	// Kubernetes requires it.
	newer bool
	// toolchain is the version of Go that the minor needs, if go.mod's is too old.
	toolchain string
	// without lists the folders that the minor does not have.
	without []string
	// imports maps modules to the ones that take their place in import paths.
	imports map[string]string
	replace []string // of the modfile, as go mod edit takes it
}

// environment returns the environment of the go commands for the minor.
func (m minor) environment() []string {
	env := os.Environ()
	if m.toolchain != "" {
		env = append(env, "GOTOOLCHAIN="+m.toolchain)
	}
	return env
}

func (m minor) modfile() string { return filepath.Join("hack", "versions", m.tag+".mod") }
func (m minor) sums() string    { return filepath.Join("hack", "versions", m.tag+".sum") }

// goTool runs a go command for the minor, with its tag and its requirements.
func (m minor) goTool(args ...string) error {
	flags, err := m.flags()
	if err != nil {
		return err
	}
	cmd := exec.Command("go", slices.Concat(args[:1], flags, args[1:])...)
	cmd.Env, cmd.Stdout, cmd.Stderr = m.environment(), os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", args[0], err)
	}
	return nil
}

// flags returns the flags that make a go command read the checkout as the minor has it.
func (m minor) flags() ([]string, error) {
	flags := []string{"-tags=" + m.tag, "-mod=readonly", "-modfile=" + m.modfile()}
	if len(m.imports) == 0 {
		return flags, nil
	}
	overlay, err := m.overlay("bin/_" + m.tag) // the underscore keeps it out of ./...
	return append(flags, "-overlay="+overlay), err
}

func main() {
	only := flag.String("minor", "", "one of the held minors by its tag, as k8s36; empty: all")
	flag.Parse()
	if err := run(*only, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "versions:", err)
		os.Exit(1)
	}
}

func run(only string, args []string) error {
	if len(args) == 0 {
		return errors.New("want build, check, test, tidy, current, tree or release")
	}
	if args[0] == "current" && only == "" && len(args) == 1 {
		return raise()
	}
	minors, err := chosen(only, args[0])
	if err != nil {
		return err
	}
	for _, m := range minors {
		if err := m.do(args[0], args[1:]); err != nil {
			return fmt.Errorf("for Kubernetes %s (%s): %w", m.kubernetes, m.tag, err)
		}
	}
	return nil
}

func chosen(only, command string) (out []minor, err error) {
	all := held
	if command == "check" || command == "test" {
		all = append(slices.Clone(held), raised)
	}
	for _, m := range all {
		if only == "" || only == m.tag {
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("-minor %q is none of those that are held", only)
	}
	return out, nil
}

func (m minor) do(command string, args []string) error {
	switch {
	case command == "test" && len(args) == 0:
		return errors.New("test: want the arguments of go test")
	case (command == "tree" || command == "release") && len(args) != 1:
		return fmt.Errorf("%s: want one argument", command)
	case command != "test" && command != "tree" && command != "release" && len(args) > 0:
		return fmt.Errorf("%s takes no arguments", command)
	}
	switch command {
	case "build":
		return m.build()
	case "check":
		if m.tag != raised.tag {
			if err := m.requirements(); err != nil {
				return err
			}
		}
		packages, err := m.packages()
		if err != nil {
			return err
		}
		return m.typecheck(packages)
	case "test":
		return m.goTool(append([]string{"test", "-vet=off"}, args...)...)
	case "tidy":
		return m.tidy()
	case "tree":
		return m.tree(".", args[0])
	case "release":
		return m.release(".", args[0])
	}
	return fmt.Errorf("%q is none of build, check, test, tidy, tree and release", command)
}

// typecheck reads packages and their tests as a compiler does, and makes no code of them:
// of the packages that they import the declarations are enough, which takes seconds where
// go vet, for which all of Kubernetes is compiled again, takes minutes.
func (m minor) typecheck(packages []string) error {
	tool := exec.Command("go", "build", "-C", "hack/tools", "-o", "../../bin/typecheck", "./typecheck")
	tool.Env, tool.Stderr = m.environment(), os.Stderr
	if err := tool.Run(); err != nil {
		return fmt.Errorf("hack/tools/typecheck: %w", err)
	}
	flags, err := m.flags()
	if err != nil {
		return err
	}
	check := exec.Command("bin/typecheck", append([]string{strings.Join(flags, " ")}, packages...)...)
	check.Env = append(m.environment(), "CGO_ENABLED=0")
	check.Stdout, check.Stderr = os.Stdout, os.Stderr
	if err := check.Run(); err != nil {
		return fmt.Errorf("packages and tests: %w", err)
	}
	return nil
}

// build compiles the public packages, as a user does.
func (m minor) build() error {
	if err := m.requirements(); err != nil {
		return err
	}
	all, err := m.packages()
	if err != nil {
		return err
	}
	packages := public(all)
	fmt.Printf("versions: %d public packages on Kubernetes %s\n", len(packages), m.kubernetes)
	if err := m.goTool(append([]string{"build"}, packages...)...); err != nil {
		return fmt.Errorf("public packages: %w", err)
	}
	return nil
}

const module = "github.com/kube-watchcache/watchcache"

// olderLack are the folders that an older minor does not have: code that the generators
// of the newest Kubernetes have written for its client-go, what needs this code, and the relay,
// which is a program of its own.
var olderLack = []string{
	"bench/", "integration/", "storage/upstream/", "cmd/relay/",
	"examples/apiserver/pkg/generated/clientset/", "examples/apiserver/pkg/generated/informers/", "examples/apiserver/pkg/generated/listers/",
}

// packages returns the packages of the module that the minor holds.
func (m minor) packages() ([]string, error) {
	flags, err := m.flags()
	if err != nil {
		return nil, err
	}
	list := exec.Command("go", slices.Concat([]string{"list", "-find"}, flags, []string{"./..."})...)
	list.Env, list.Stderr = m.environment(), os.Stderr
	listed, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	return slices.DeleteFunc(strings.Fields(string(listed)), func(p string) bool {
		return inAny(strings.TrimPrefix(p, module+"/")+"/", m.without)
	}), nil
}

// public leaves out the folders that docs/adopting.md calls not public.
func public(packages []string) (out []string) {
	for _, p := range packages {
		first, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(p, module), "/"), "/")
		switch first {
		case "bench", "dashboards", "examples", "hack", "integration", "internal":
		default:
			out = append(out, p)
		}
	}
	return out
}

func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, args[0], err)
	}
	return string(out), nil
}
