// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
)

// TestMemberDownAtStart: a server that starts while a member is away finds out
// all the same that etcd reports progress, and serves consistent reads from its
// cache, from the first one on.
func TestMemberDownAtStart(t *testing.T) {
	noLeaks(t)
	_, err := testserver.Path()
	require.NoError(t, err)
	cluster := etcdserver.StartCluster(t, 3, t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	for _, down := range cluster.Members() {
		t.Run(down.String(), func(t *testing.T) {
			require.NoError(t, down.Kill(ctx))
			server := testserver.Start(t, apiserver.Ours, cluster.Endpoints())
			client := server.Devices(t)
			const lists = 10
			for range lists {
				_, err := client.FleetV1().Devices("").List(ctx, metav1.ListOptions{})
				require.NoError(t, err)
			}
			served := readsServed(t, server, "list")
			require.GreaterOrEqual(t, served["consistent"], lists, "%v", served)
			require.Zero(t, served["delegate"], "%v", served)
		})
		require.NoError(t, cluster.StartAll(ctx))
	}
}

// readsServed is how often the cache served reads in which way, as its metrics
// say.
func readsServed(t *testing.T, server *apiserver.Process, verb string) map[string]int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.Config.Host+"/metrics", nil)
	require.NoError(t, err)
	response, err := server.Connect(t).Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	served := map[string]int{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		labels, value, found := strings.Cut(lines.Text(), "} ")
		if !found || !strings.HasPrefix(labels, "watchcache_reads_total{") || !strings.Contains(labels, `verb="`+verb+`"`) {
			continue
		}
		_, mode, _ := strings.Cut(labels, `decision="`)
		mode, _, _ = strings.Cut(mode, `"`)
		n, err := strconv.ParseFloat(value, 64)
		require.NoError(t, err, lines.Text())
		served[mode] += int(n)
	}
	return served
}
