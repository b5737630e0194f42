// SPDX-License-Identifier: Apache-2.0

// Typecheck checks the types of packages and their tests from sources, and of what they
// import the declarations only. Nothing is compiled.
//
//	typecheck "-tags=k8s36 -modfile=..." PACKAGE...
package main

import (
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
	read, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax,
		Tests:      true,
		BuildFlags: strings.Fields(os.Args[1]),
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
