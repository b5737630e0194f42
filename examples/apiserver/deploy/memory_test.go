// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"cmp"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher"
)

const mebibyte = 1 << 20

// The memory that the Deployment asks for is what README.md's formula gives for
// the numbers that README.md assumes, with the budgets of the server's flags.
func TestMemory(t *testing.T) {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	assumed := func(what string) float64 {
		row := regexp.MustCompile(`(?m)^\| ` + what + ` \| ([\d,.]+)`).FindSubmatch(page)
		require.NotNil(t, row, "README.md assumes nothing about %q", what)
		value, err := strconv.ParseFloat(strings.ReplaceAll(string(row[1]), ",", ""), 64)
		require.NoError(t, err)
		return value
	}
	_, container := podOf(t)
	options := optionsOf(t, container).WatchCache
	window, encodings := cmp.Or(options.WindowBytes, cacher.DefaultWindowBytes), cmp.Or(options.EncodingBytes, cacher.DefaultEncodingBytes)
	budgets := float64(2*window+encodings) / mebibyte // initial events may keep as much as the window
	require.Equal(t, budgets, assumed("budgets of one cache, MiB"))
	need := assumed("the process, MiB") +
		assumed("watches")*assumed("one watch, KiB")/1024 +
		assumed("objects")*(assumed("one object in memory, KiB")+assumed("the cache's own part of it, KiB"))/1024 +
		assumed("caches")*budgets

	request := float64(container.Resources.Requests.Memory().Value()) / mebibyte
	limit := float64(container.Resources.Limits.Memory().Value()) / mebibyte
	goLimit := 0.0
	for _, env := range container.Env {
		if value, ok := strings.CutSuffix(env.Value, "MiB"); ok && env.Name == "GOMEMLIMIT" {
			goLimit, err = strconv.ParseFloat(value, 64)
			require.NoError(t, err)
		}
	}
	within := func(what string, got, want float64) {
		require.GreaterOrEqual(t, got, math.Floor(want), "%s: %g MiB; the formula gives %g", what, got, want)
		require.LessOrEqual(t, got, 1.1*want, "%s: %g MiB; the formula gives %g", what, got, want)
	}
	within("requests.memory", request, need)
	within("GOMEMLIMIT", goLimit, 1.2*need)
	within("limits.memory", limit, goLimit/0.9)
}
