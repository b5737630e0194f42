// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/dashboards"
	"github.com/kube-watchcache/watchcache/internal/needs"
	"github.com/kube-watchcache/watchcache/metrics"
)

// TestRun: make observe prints where the server, its page and Prometheus are;
// Prometheus scrapes the server's own /metrics, with a certificate; and Ctrl-C ends
// all of them in good order.
func TestRun(t *testing.T) {
	needs.Program(t, "prometheus", "prometheus")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var text strings.Builder
	announced := make(chan struct{})
	ready := sync.OnceFunc(func() { close(announced) })
	p, err := launch("make observe", command(), []string{runVariable + "=" + t.TempDir()}, func(line string) {
		text.WriteString(line + "\n")
		if strings.HasPrefix(line, "Ctrl-C ends") {
			ready()
		}
	})
	require.NoError(t, err)
	t.Cleanup(p.kill)
	require.NoError(t, p.await(ctx, announced))
	said := text.String() // nothing follows
	require.Contains(t, said, "/debug/watchcache\n")
	require.Regexp(t, `kubectl --kubeconfig \S+ get --raw '/debug/watchcache\?format=json'`, said)
	addresses := map[string]string{}
	for _, address := range regexp.MustCompile(`https?://[\d.:]+`).FindAllString(said, -1) {
		parsed, err := url.Parse(address)
		require.NoError(t, err)
		addresses[parsed.Scheme] = parsed.Host
	}
	require.Len(t, addresses, 2, said)

	seen := &Prometheus{URL: "http://" + addresses["http"], client: &http.Client{Transport: &http.Transport{}}}
	defer seen.client.CloseIdleConnections()
	for _, name := range []metrics.Name{metrics.NameReads, metrics.NameDelivered, metrics.NameWatchers, "apiserver_request_total"} {
		await(t, ctx, "Prometheus has "+string(name), func(ctx context.Context) (bool, error) {
			samples, err := seen.Query(ctx, string(name)+` > 0`)
			return len(samples) > 0, err
		})
	}
	var loaded struct {
		Data struct {
			Groups []struct{ Rules []struct{ Name string } }
		}
	}
	require.NoError(t, seen.get(ctx, "/api/v1/rules", nil, &loaded))
	require.Len(t, loaded.Data.Groups, 1)
	require.Len(t, loaded.Data.Groups[0].Rules, len(dashboards.Rules(dashboards.RealTime).Groups[0].Rules))

	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	select {
	case <-p.exited:
	case <-ctx.Done():
		require.FailNow(t, fmt.Sprintf("the command does not end: %s", &p.log))
	}
	require.NoError(t, p.err, "%s", &p.log)
	for _, address := range addresses {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		require.ErrorIs(t, err, syscall.ECONNREFUSED, address)
	}
}
