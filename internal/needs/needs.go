// SPDX-License-Identifier: Apache-2.0

// Package needs finds programs that a test runs and a machine may lack. A test that
// lacks one is skipped and named in the last lines of make; with CI=true it fails.
package needs

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Program returns the path of the first of the programs that is on the PATH. pkg is the
// package of Debian to install.
func Program(t testing.TB, pkg string, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	reason := fmt.Sprintf("no %s on the PATH: install the package %s", names[0], pkg)
	if os.Getenv("CI") == "true" {
		t.Fatal(reason)
	}
	if err := note(os.Getenv("SKIPPED"), t.Name()+": "+reason); err != nil {
		t.Fatal(err)
	}
	t.Skip(reason)
	return ""
}

// note adds a line to the file that hack/skipped.sh prints at the end of a make target.
func note(file, line string) error {
	if file == "" {
		return nil
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, line)
	return err
}
