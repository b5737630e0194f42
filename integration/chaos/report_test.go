// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// examples is how many violations of a property the report has.
const examples = 5

// report is what a run came to, in Markdown.
func (r *run) report(v verdict, again string) string {
	var out strings.Builder
	c := &r.clients.counts
	fmt.Fprintf(&out, "# Chaos, seed %d\n\nAgain: `%s`\n\n%v\n\n", r.seed, again, r.cluster)
	if r.unslow != nil {
		fmt.Fprintf(&out, "No disk was slow: %v\n\n", r.unslow)
	}
	fmt.Fprintf(&out, "| | |\n|---|---|\n")
	for _, row := range []struct {
		what string
		n    int64
	}{
		{"faults", int64(len(r.timeline.marks()))}, {"changes in etcd", int64(v.changes)}, {"operations judged by porcupine", int64(v.ops)}, {"reads judged", int64(v.reads)},
		{"watches judged", int64(v.streams)}, {"events judged, bookmarks included", int64(v.events)},
		{"watches judged in the test's process", int64(v.insideStreams)}, {"events judged in the test's process", int64(v.insideEvents)},
		{"calls of fsync that were slow", r.slowSyncs},
		{"writes acknowledged", c.writes.Load()}, {"writes unanswered", c.unanswered.Load()}, {"reads that failed", c.unread.Load()},
		{"watches that ended", c.broken.Load()}, {"watches told 410", c.expired.Load()}, {"watches refused", c.refused.Load()}, {"violations", int64(len(v.violations))},
	} {
		fmt.Fprintf(&out, "| %s | %d |\n", row.what, row.n)
	}
	out.WriteString("\n")
	for _, line := range v.figures {
		fmt.Fprintf(&out, "- %s\n", line)
	}
	out.WriteString("\n## Faults\n\n| from | to | |\n|---|---|---|\n")
	for _, m := range r.timeline.marks() {
		fmt.Fprintf(&out, "| %.1f s | %.1f s | %s |\n", m.from.Seconds(), m.to.Seconds(), m.name)
	}
	out.WriteString("\n![timeline](timeline.svg)\n\n## What watches were told at their ends\n\n")
	lines := make([]string, 0, len(v.said))
	for said, n := range v.said {
		lines = append(lines, fmt.Sprintf("- %d times `%s`", n, said))
	}
	sort.Strings(lines)
	out.WriteString(strings.Join(lines, "\n") + "\n\n## Violations\n\n")
	if len(v.violations) == 0 {
		out.WriteString("None.\n")
	}
	told := map[string]int{}
	for _, violation := range v.violations {
		property := string(violation.Property)
		if told[property]++; told[property] <= examples {
			fmt.Fprintf(&out, "- %s\n", violation)
		}
	}
	for property, n := range told {
		if n > examples {
			fmt.Fprintf(&out, "- %s: %d in all\n", property, n)
		}
	}
	return out.String()
}

func (tl *timeline) marks() []mark {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	return append([]mark(nil), tl.mu.marks...)
}

// write writes the report and the timeline into the folder.
func (r *run) write(dir string, v verdict, again string) error {
	if err := os.WriteFile(filepath.Join(dir, "report.md"), []byte(r.report(v, again)), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "timeline.svg"), []byte(r.timeline.svg()), 0o644)
}
