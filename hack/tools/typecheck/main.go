// SPDX-License-Identifier: Apache-2.0

// Typecheck checks the types of packages and their tests from sources, and of what they
// import the declarations only. Nothing is compiled.
//
//	typecheck "-tags=k8s36 -modfile=..." PACKAGE...
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "typecheck: want the go command's flags, and packages")
		os.Exit(2)
	}
	flags, overlay, err := split(strings.Fields(os.Args[1]))
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
	read, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax,
		Tests:      true,
		BuildFlags: flags,
		Overlay:    overlay,
	}, os.Args[2:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
	if n := packages.PrintErrors(read); n > 0 {
		fmt.Fprintf(os.Stderr, "typecheck: %d errors\n", n)
		os.Exit(1)
	}
	fmt.Printf("typecheck: %d packages and tests\n", len(read))
}

// split takes the -overlay out of the go command's flags, and reads the files of it: package
// packages has its own way to pass them on.
func split(all []string) (flags []string, overlay map[string][]byte, err error) {
	overlay = map[string][]byte{}
	for _, flag := range all {
		name, isOverlay := strings.CutPrefix(flag, "-overlay=")
		if !isOverlay {
			flags = append(flags, flag)
			continue
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, nil, err
		}
		var file struct{ Replace map[string]string }
		if err := json.Unmarshal(content, &file); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		for from, to := range file.Replace {
			if overlay[from], err = os.ReadFile(to); err != nil {
				return nil, nil, err
			}
		}
	}
	return flags, overlay, nil
}
