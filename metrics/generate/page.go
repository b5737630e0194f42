// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/kube-watchcache/watchcache/metrics"
)

const head = `# Metrics

<!-- Made by metrics/generate of the list in package metrics: make generate writes this page. -->

Each cache exports these metrics with the labels ` + "`group` and `resource`" + `. A series of a counter or histogram with labels of its own appears when it is first counted; other counters and gauges exist while the cache is awake. A sleeping cache exports only metrics marked *also asleep*, and its counters restart at 0 when it wakes up. Histograms have classic buckets, and native ones for a Prometheus that requests them.
`

// page returns the page of metrics in Markdown.
func page(list []metrics.Description) []byte {
	var out bytes.Buffer
	out.WriteString(head)
	for _, d := range list {
		fmt.Fprintf(&out, "\n## %s\n\n%s\n\n", d.Name, kind(d))
		fmt.Fprintf(&out, "%s\n\n", d.Help)
		advice := texts[d.Name]
		for _, part := range [][2]string{{"For", advice.purpose}, {"Normal", advice.normal}, {"High", advice.high}} {
			if part[1] != "" {
				fmt.Fprintf(&out, "- **%s:** %s\n", part[0], part[1])
			}
		}
	}
	return out.Bytes()
}

// kind returns a line with the kind and the labels.
func kind(d metrics.Description) string {
	line := strings.ToUpper(string(d.Kind[:1])) + string(d.Kind[1:])
	for _, l := range d.Labels {
		values := "from the configuration"
		if len(l.Values) > 0 {
			values = "`" + strings.Join(l.Values[1:], "`, `") + "`" // without other
		}
		line += fmt.Sprintf("; `%s`: %s", l.Name, values)
	}
	if d.Asleep {
		line += "; also asleep"
	}
	return line + "."
}
