// SPDX-License-Identifier: Apache-2.0

package arrows

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// Each link of each Markdown page leads to a file or folder of the tree, and to
// a heading that the page has. Links to other hosts are not followed: only their
// form is checked.
func TestLinks(t *testing.T) {
	pages, err := readPages(root)
	require.NoError(t, err)
	for _, known := range []string{"README.md", "docs/decisions/README.md", "examples/apiserver/deploy/README.md"} {
		require.Contains(t, pages, known, "the pages were not read whole")
	}
	for _, breach := range checkLinks(root, pages) {
		t.Error(breach)
	}
}

// readPages returns the text of each Markdown file below root, by its path. The
// pages of nested modules are among them; folders that begin with a dot are not.
func readPages(root string) (map[string]string, error) {
	pages := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != root && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir() || path.Ext(p) != ".md":
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(p)
		pages[filepath.ToSlash(rel)] = string(text)
		return err
	})
	return pages, err
}

var (
	fence = regexp.MustCompile("(?ms)^[ \t]*(?:```|~~~).*?^[ \t]*(?:```|~~~)[ \t]*$")
	code  = regexp.MustCompile("`[^`\n]*`")
	// inlineLink is [text](target "title"), an image too; referenceLink is
	// "[name]: target" on a line of its own; htmlLink is href and src.
	inlineLink    = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)`)
	referenceLink = regexp.MustCompile(`(?m)^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)>?`)
	htmlLink      = regexp.MustCompile(`(?:href|src|srcset)="([^"]+)"`)
	headingLine   = regexp.MustCompile(`(?m)^#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$`)
	htmlAnchor    = regexp.MustCompile(`(?:id|name)="([^"]+)"`)
	linkText      = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
)

// linksOf returns the targets of a page's links. Code has none.
func linksOf(page string) []string {
	page = code.ReplaceAllString(fence.ReplaceAllString(page, ""), "")
	var targets []string
	for _, kind := range []*regexp.Regexp{inlineLink, referenceLink, htmlLink} {
		for _, m := range kind.FindAllStringSubmatch(page, -1) {
			targets = append(targets, m[1])
		}
	}
	return targets
}

// anchorsOf returns the names by which the headings of a page can be linked to,
// made as the usual hosts of repositories make them: lower case, blanks become
// hyphens, punctuation is dropped, and a heading that repeats gets a number.
func anchorsOf(page string) map[string]bool {
	page = fence.ReplaceAllString(page, "")
	anchors := map[string]bool{}
	for _, m := range headingLine.FindAllStringSubmatch(page, -1) {
		var slug strings.Builder
		for _, r := range strings.ToLower(linkText.ReplaceAllString(m[1], "$1")) {
			switch {
			case r == ' ':
				slug.WriteByte('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				slug.WriteRune(r)
			}
		}
		name := slug.String()
		for n := 1; anchors[name]; n++ {
			name = fmt.Sprintf("%s-%d", slug.String(), n)
		}
		anchors[name] = true
	}
	for _, m := range htmlAnchor.FindAllStringSubmatch(page, -1) {
		anchors[m[1]] = true
	}
	return anchors
}

// checkLinks returns each link of the pages that leads nowhere, one line each.
func checkLinks(root string, pages map[string]string) []string {
	var found []string
	for name, text := range pages {
		for _, target := range linksOf(text) {
			if reason := checkLink(root, pages, name, target); reason != "" {
				found = append(found, fmt.Sprintf("%s links to %s: %s", name, target, reason))
			}
		}
	}
	return found
}

// checkLink returns why the link of a page leads nowhere, "" if it does not.
func checkLink(root string, pages map[string]string, page, target string) string {
	link, err := url.Parse(target)
	switch {
	case err != nil:
		return err.Error()
	case link.Scheme == "https" && link.Host != "", link.Scheme == "mailto":
		return ""
	case link.Scheme != "" || link.Host != "" || strings.HasPrefix(link.Path, "/"):
		return "neither https nor a relative path"
	}
	to := page
	if link.Path != "" {
		to = path.Join(path.Dir(page), link.Path)
		if strings.HasPrefix(to, "..") {
			return "it leaves the repository"
		}
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(to))); err != nil {
			return "there is no such file"
		}
	}
	if link.Fragment == "" {
		return ""
	}
	text, isPage := pages[to]
	if !isPage {
		return "only pages have headings"
	}
	if !anchorsOf(text)[link.Fragment] {
		return "the page has no such heading"
	}
	return ""
}
