// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/itchyny/gojq"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/debugpage"
)

var jqLine = regexp.MustCompile(`kubectl get --raw '([^']*)' \| jq -r '([^']*)'`)

// The lines for jq in docs/runbook.md answer their questions: who is slow, is it
// fresh, what is it holding, who has lost their watch.
func TestLinesForJQ(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "runbook.md"))
	require.NoError(t, err)
	lines := jqLine.FindAllStringSubmatch(string(page), -1)
	require.Len(t, lines, 4)

	server, err := debugpage.Start(cacher.Configure(func(c *cacher.Config) { c.WatchBuffer = 10 }), cacher.Configure(func(c *cacher.Config) { c.WindowBytes = 1 << 20 }))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	f := &fixture{t: t, server: server}
	f.robot, err = server.Client(debugpage.Robot)
	require.NoError(t, err)
	t.Cleanup(f.robot.CloseIdleConnections)
	viewer, err := server.Client(debugpage.Viewer)
	require.NoError(t, err)
	t.Cleanup(viewer.CloseIdleConnections)
	answer := func(i int) string {
		t.Helper()
		return ask(t, viewer, server.URL+lines[i][1], lines[i][2])
	}
	f.put("device-0")
	require.Empty(t, answer(3), "no watch has ended")
	f.watch("slow-client", false)
	slow := answer(0)
	for i := 0; !strings.Contains(slow, "parked"); i++ {
		require.Less(t, i, 10_000, "the slow watcher is never parked")
		f.put("device-0") // one at a time: the window has room for some 150
		slow = answer(0)
	}
	require.Regexp(t, `^devices\.fleet\.example\.com\trobot\tslow-client\t127\.0\.0\.1:\d+\tparked\t\d+\t`, slow)
	require.Regexp(t, `^devices\.fleet\.example\.com\tready\t\d+\t[0-9.e-]+\t[0-9.e-]+\n$`, answer(1))
	require.Regexp(t, `^devices\.fleet\.example\.com\t1\t\d+\t\d+\t\d+\t\d+\t1\n$`, answer(2))

	for i := 0; !strings.Contains(answer(3), "slow-client"); i++ {
		require.Less(t, i, 1000, "the slow watcher never leaves the window")
		for range 50 {
			f.put("device-0")
		}
	}
	require.Regexp(t, `^[0-9-]+T[0-9:.]+Z\texpired\trobot\tslow-client\t127\.0\.0\.1:\d+\t\d+\n$`, answer(3))
}

// ask returns what a program for jq prints of the answer to a request.
func ask(t *testing.T, client *http.Client, url, program string) string {
	t.Helper()
	response, err := client.Get(url)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, string(body))
	var in any
	require.NoError(t, json.Unmarshal(body, &in))
	query, err := gojq.Parse(program)
	require.NoError(t, err)
	var out strings.Builder
	results := query.Run(in)
	for {
		result, more := results.Next()
		if !more {
			return out.String()
		}
		line, isText := result.(string)
		require.True(t, isText, "%v", result)
		out.WriteString(line + "\n")
	}
}
