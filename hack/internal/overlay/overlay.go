// SPDX-License-Identifier: Apache-2.0

// Package overlay writes the file that go's flag -overlay names: what is compiled in the
// place of other files, which stay as they are.
package overlay

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// File is the name of the file in its folder.
const File = "overlay.json"

// Write has the keys of replace, paths of sources, read from the paths that are their
// values. Write returns the path of the file, which is in dir.
func Write(dir string, replace map[string]string) (name string, err error) {
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name = filepath.Join(dir, File)
	return name, os.WriteFile(name, text, 0o644)
}
