// SPDX-License-Identifier: Apache-2.0

// Command generate writes the dashboards, rules and rule tests of package
// dashboards below the folder that is its only argument.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/kube-watchcache/watchcache/dashboards"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// write writes all files below folder.
func write(folder string) error {
	files, err := dashboards.Files()
	if err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
