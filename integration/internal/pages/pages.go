// SPDX-License-Identifier: Apache-2.0

// Package pages reads the code blocks of Markdown pages, for tests that do what a
// page says word for word.
package pages

import (
	"fmt"
	"os"
	"strings"
)

// Block is a fenced code block.
type Block struct {
	// Language is the word behind the opening fence.
	Language string
	// Text is what stands between the fences.
	Text string
}

// Section returns the code blocks of a page's section, which begins at the heading
// of that text and ends at the next heading.
func Section(name, heading string) ([]Block, error) {
	page, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var blocks []Block
	var current *Block
	var inside, found bool
	for line := range strings.Lines(string(page)) {
		fence, isFence := strings.CutPrefix(strings.TrimRight(line, "\n"), "```")
		switch {
		case isFence && current == nil:
			current = &Block{Language: fence}
		case isFence:
			if inside {
				blocks = append(blocks, *current)
			}
			current = nil
		case current != nil:
			current.Text += line
		case strings.HasPrefix(line, "#"):
			inside = strings.TrimSpace(strings.TrimLeft(line, "#")) == heading
			found = found || inside
		}
	}
	if !found {
		return nil, fmt.Errorf("%s has no section %q", name, heading)
	}
	return blocks, nil
}
