// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/metrics"
)

// docs/tuning.md has a section, or a reason for having none, for each field of
// Config and for nothing else. The flags in its headings are those of its table, and each metric and label that the page names exists.
func TestTuningPage(t *testing.T) {
	text, err := os.ReadFile("../docs/tuning.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "\n## Without a flag\n")
	require.True(t, ok)
	without, _, _ := strings.Cut(rest, "\n## ")

	told := map[string]bool{}
	for _, section := range strings.Split(string(text), "\n### ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		name, flag, flagged := strings.Cut(heading, " ")
		require.False(t, told[name], "docs/tuning.md has two sections for %s", name)
		told[name] = true
		row := regexp.MustCompile("(?m)^\\| (`--[a-z-]+`) \\| `" + name + "` \\|").FindStringSubmatch(string(text))
		require.Equal(t, row != nil, flagged, "the heading of %s names its flag, if there is one", name)
		if flagged {
			assert.Equal(t, row[1], flag, "the flag of %s", name)
		}
		for _, part := range []string{"Symptom", "Metric", "Choose"} {
			assert.Equal(t, 1, strings.Count(body, "- **"+part+":** "), "%s in the section of %s", part, name)
		}
	}
	for _, name := range configFields() {
		assert.True(t, told[name] || strings.Contains(without, "`"+name+"`"), "docs/tuning.md has neither a section for Config.%s nor a reason for having none", name)
		delete(told, name)
	}
	assert.Empty(t, told, "sections of docs/tuning.md for options that there are not")

	labels := map[string]bool{}
	known := map[string]bool{}
	for _, metric := range metrics.List() {
		known[string(metric.Name)] = true
		for _, label := range metric.Labels {
			for _, value := range label.Values {
				labels[label.Name+`="`+value+`"`] = true
			}
		}
	}
	labels[`index="`+metrics.ByKeys+`"`] = true
	production, err := os.ReadFile("../docs/production.md")
	require.NoError(t, err)
	for _, name := range regexp.MustCompile(`watchcache_\w+`).FindAllString(string(text)+string(production), -1) {
		assert.True(t, known[name], "docs/tuning.md or docs/production.md names the metric %s, which does not exist", name)
	}
	for _, label := range regexp.MustCompile("`(\\w+=\"\\w+\")`").FindAllStringSubmatch(string(text), -1) {
		assert.True(t, labels[label[1]], "docs/tuning.md names %s, which no metric has", label[1])
	}
}
