// SPDX-License-Identifier: Apache-2.0

// Package needs finds programs that tests require. A test without its program is skipped and listed
// at the end of make's output; with CI=true it fails.
package needs

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Program returns the path of the first program found on the PATH. pkg is the Debian package that
// contains it.
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

// note appends to the file printed by hack/skipped.sh at the end of a make target.
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
