// SPDX-License-Identifier: Apache-2.0

package arrows

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// license is the first line of every Go file.
const license = "// SPDX-License-Identifier: Apache-2.0"

// file is one parsed Go file. Files are read whatever their build tags are.
type file struct {
	path      string // relative to the root, with slashes
	pkg       string // folder, relative to the root: "." is the root
	name      string // of the package clause, without _test
	test      bool
	generated bool
	licensed  bool
	imports   []string
	syntax    *ast.File
	fset      *token.FileSet
}

// readTree parses the Go files of the module at root. Folders that the go
// command does not look into, and nested modules, are left out.
func readTree(root string) ([]file, error) {
	var files []file
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != root && (ignored(d.Name()) || isModule(p)) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") || ignored(d.Name()) {
			return nil
		}
		f, err := readFile(root, p)
		if err != nil {
			return err
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

func ignored(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "vendor"
}

func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func readFile(root, p string) (file, error) {
	src, err := os.ReadFile(p)
	if err != nil {
		return file{}, err
	}
	rel, err := filepath.Rel(root, p)
	if err != nil {
		return file{}, err
	}
	rel = filepath.ToSlash(rel)
	fset := token.NewFileSet()
	syntax, err := parser.ParseFile(fset, rel, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return file{}, err
	}
	f := file{
		path:      rel,
		pkg:       path.Dir(rel),
		name:      strings.TrimSuffix(syntax.Name.Name, "_test"),
		test:      strings.HasSuffix(rel, "_test.go"),
		generated: ast.IsGenerated(syntax),
		licensed:  strings.HasPrefix(string(src), license+"\n\n"),
		syntax:    syntax,
		fset:      fset,
	}
	for _, spec := range syntax.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return file{}, err
		}
		f.imports = append(f.imports, imported)
	}
	return f, nil
}

// covers reports whether pattern, a path or a folder with /... after it,
// stands for name.
func covers(pattern, name string) bool {
	if pattern == anything {
		return true
	}
	if folder, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == folder || strings.HasPrefix(name, folder+"/")
	}
	return pattern == name
}

// covered reports whether one of patterns stands for name.
func covered(patterns []string, name string) bool {
	for _, p := range patterns {
		if covers(p, name) {
			return true
		}
	}
	return false
}

// ours returns the folder of an import path of this module.
func ours(imported string) (string, bool) {
	if imported == module {
		return ".", true
	}
	return strings.CutPrefix(imported, module+"/")
}
