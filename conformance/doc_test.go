// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// documented is a row of the tables in the package comment.
var documented = regexp.MustCompile(`^\t([A-Z][A-Za-z]+) {2,}\S`)

// The package comment has a row for each clause of ours, and no other.
func TestClausesAreDocumented(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	require.NoError(t, err)
	var rows, clauses []string
	for line := range strings.Lines(file.Doc.Text()) {
		if row := documented.FindStringSubmatch(line); row != nil {
			rows = append(rows, row[1])
		}
	}
	for _, g := range ours() {
		for _, c := range g.clauses {
			if !slices.Contains(clauses, c.name) {
				clauses = append(clauses, c.name)
			}
		}
	}
	require.Len(t, rows, len(clauses), "a row is there twice, or missing")
	require.ElementsMatch(t, clauses, rows)
}
