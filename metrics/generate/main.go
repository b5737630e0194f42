// SPDX-License-Identifier: Apache-2.0

// Command generate writes docs/metrics.md from the list in package metrics. Its argument is the
// path of the page.
package main

import (
	"fmt"
	"os"

	"github.com/kube-watchcache/watchcache/metrics"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate PATH")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], page(metrics.List()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
