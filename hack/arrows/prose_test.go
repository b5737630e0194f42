// SPDX-License-Identifier: Apache-2.0

package arrows

import (
	"bufio"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the counts of testdata/phrases.txt anew")

// phrases finds wordings of comments for which there is a plainer one: a noun in place of
// "what is" and "those that", a verb in place of "is told".
var phrases = regexp.MustCompile(`(?i)\bwhat (is|was|are|has|have|it|they|the|a|there|comes?|came) ` +
	`|\b(those|the ones?) (that|who|which) |\b(is|are|was|were|be) told\b|\b(of|for|in|to|from) which |\bheard of\b`)

// phrasesFile has the number of lines of comments with such a phrase, for each package.
const phrasesFile = "testdata/phrases.txt"

// The count of no package rises. go test ./hack/arrows -run TestPhrases -rewrite lowers the
// counts to those of the tree.
func TestPhrases(t *testing.T) {
	files, err := readTree("../..")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	lines := map[string][]string{}
	for _, f := range files {
		if f.generated || strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		pkg := path.Dir(f.path)
		for _, comment := range f.syntax.Comments {
			for _, line := range comment.List {
				if phrases.MatchString(line.Text) {
					counts[pkg]++
					lines[pkg] = append(lines[pkg], fmt.Sprintf("%s: %s", f.fset.Position(line.Pos()), line.Text))
				}
			}
		}
	}
	if *rewrite {
		var text strings.Builder
		for _, pkg := range slices.Sorted(maps.Keys(counts)) {
			fmt.Fprintf(&text, "%d %s\n", counts[pkg], pkg)
		}
		if err := os.WriteFile(phrasesFile, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	allowed := map[string]int{}
	file, err := os.Open(phrasesFile)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		var count int
		var pkg string
		if _, err := fmt.Sscan(scanner.Text(), &count, &pkg); err != nil {
			t.Fatalf("%s: %q: %v", phrasesFile, scanner.Text(), err)
		}
		allowed[pkg] = count
	}
	for pkg, count := range counts {
		if count > allowed[pkg] {
			t.Errorf("%s: %d lines of comments have a phrase for which there is a plainer one, want at most %d:\n%s",
				pkg, count, allowed[pkg], strings.Join(lines[pkg], "\n"))
		}
	}
}
