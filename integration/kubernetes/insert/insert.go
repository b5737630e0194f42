// SPDX-License-Identifier: Apache-2.0

// Package insert puts text before a line of a file of Kubernetes, in a copy of the module.
package insert

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Line is a line of a file, and the text for it.
type Line struct {
	// File is a path within the module.
	File string
	// Before is the only line of the file that is so, without what it is indented by.
	Before string
	Text   string
	// Instead: the text takes the place of the line.
	Instead bool
}

// Insert changes the file in the copy in dir.
func (l Line) Insert(dir string) error {
	path := filepath.Join(dir, l.File)
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed, err := l.Apply(string(source))
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(changed), 0o644)
}

// Apply returns the source with the text.
func (l Line) Apply(source string) (string, error) {
	lines := strings.SplitAfter(source, "\n")
	at := -1
	for n, line := range lines {
		if strings.TrimSpace(line) != l.Before {
			continue
		}
		if at >= 0 {
			return "", fmt.Errorf("%s has the line %q more than once: this version of Kubernetes needs another place", l.File, l.Before)
		}
		at = n
	}
	if at < 0 {
		return "", fmt.Errorf("%s has no line %q: this version of Kubernetes needs another place", l.File, l.Before)
	}
	from := at
	if l.Instead {
		from++
	}
	return strings.Join(lines[:at], "") + l.Text + strings.Join(lines[from:], ""), nil
}
