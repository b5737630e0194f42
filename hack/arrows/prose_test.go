// SPDX-License-Identifier: Apache-2.0

package arrows

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// bareSubject finds a sentence that begins with a bare who, what or it, which
// leaves the reader to find the subject. The mark that ends the sentence is not
// part of the match, because the next sentence begins after that mark.
var bareSubject = regexp.MustCompile(`(?:^|[.!?:;] |[.!?]\) )((?:Who|What|Whoever|Whatever|It|It's|It'll) [^.!?]*)`)

// bareSubjects returns the sentences of a comment, quoted code left out, that
// begin with a bare subject. In questions the words are usual.
func bareSubjects(comment *ast.CommentGroup) []string {
	var found []string
	for paragraph := range strings.SplitSeq(prose(comment), "\n\n") {
		text := strings.Join(strings.Fields(paragraph), " ")
		for _, match := range bareSubject.FindAllStringSubmatchIndex(text, -1) {
			sentence, rest := text[match[2]:match[3]], text[match[3]:]
			if !strings.HasPrefix(rest, "?") {
				found = append(found, sentence)
			}
		}
	}
	return found
}

// prose returns the text of a comment without headings and indented code.
func prose(comment *ast.CommentGroup) string {
	lines := strings.Split(comment.Text(), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "\t") {
			lines[i] = ""
		}
		if strings.HasPrefix(strings.TrimSpace(line), "- ") {
			lines[i] = "\n\n" + strings.TrimPrefix(strings.TrimSpace(line), "- ")
		}
	}
	return strings.Join(lines, "\n")
}

// Every sentence of a comment names its subject.
func TestSentencesNameTheirSubject(t *testing.T) {
	files, err := readTree("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.generated {
			continue
		}
		for _, comment := range f.syntax.Comments {
			for _, sentence := range bareSubjects(comment) {
				t.Errorf("%s: name the subject of %q", f.fset.Position(comment.Pos()), sentence)
			}
		}
	}
}

func TestBareSubjects(t *testing.T) {
	for text, want := range map[string]int{
		"// What does not fit is refused.":                         1,
		"// Errors name the field. Whoever asks\n// again waits.":  1,
		"// The keys: What is left.":                               1,
		"// - Who asks gets it.\n// - What he gets is a copy.":     2,
		"// close ends it. It never blocks.":                       1,
		"// It is one.\n//\n// It's two. It is three.":             3,
		"// The watch ends (see Stop.) It is not awaited.":         1,
		"// Its owner awaits it; it may be nil. Items are shared.": 0,
		"// What does a client see?":                               0,
		"// The reader gets what it asked for, whatever that is.":  0,
		"// Whole and Whatnot are names.":                          0,
		"// # What is global\n//\n// Feature gates are read once.": 0,
		"// For example:\n//\n//\tWhat it prints.":                 0,
	} {
		comment := &ast.CommentGroup{}
		for line := range strings.SplitSeq(text, "\n") {
			comment.List = append(comment.List, &ast.Comment{Text: line})
		}
		if got := bareSubjects(comment); len(got) != want {
			t.Errorf("%q: found %q, want %d", text, got, want)
		}
	}
}
