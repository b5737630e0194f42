// SPDX-License-Identifier: Apache-2.0

//go:build unix

package relayload

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// watches is a server of watches, each of which sends lines and then, unless it is the last
// one, ends.
type watches struct {
	script [][]string
	mu     sync.Mutex
	asked  []url.Values
}

func (w *watches) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	turn := len(w.asked)
	w.asked = append(w.asked, r.URL.Query())
	w.mu.Unlock()
	if r.Header.Get("Accept-Encoding") != "gzip" || r.Header.Get("Accept") != "application/json" || r.Header.Get("Authorization") != "Bearer t" || turn >= len(w.script) {
		out.WriteHeader(http.StatusTeapot)
		return
	}
	for _, line := range w.script[turn] {
		fmt.Fprintln(out, line)
	}
	out.(http.Flusher).Flush()
	if turn == len(w.script)-1 {
		<-r.Context().Done()
	}
}

func event(kind, name string, version int) string {
	return fmt.Sprintf(`{"type":%q,"object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":"n","resourceVersion":"%d","annotations":{"written":"%d"}}}}`, kind, name, version, version)
}

const synced = `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}}`

// An informer resumes where it was, lists after a 410, and knows then what is gone.
func TestInformer(t *testing.T) {
	w := &watches{script: [][]string{
		{event("ADDED", "a", 3), event("ADDED", "b", 4), event("ADDED", "c", 5), fmt.Sprintf(synced, 6), event("MODIFIED", "a", 7)},
		{event("DELETED", "c", 8), `{"type":"ERROR","object":{"kind":"Status","code":410}}`},
		{event("ADDED", "a", 9), fmt.Sprintf(synced, 10), event("MODIFIED", "a", 11)},
	}}
	server := httptest.NewUnstartedServer(w)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	f := &Fleet{ctx: t.Context()}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, f.Start(Orders{Server: server.URL, Token: "t", CA: ca, Informers: 1, PerConnection: 1, Pods: map[string]int{"a": 0, "b": 1, "c": 2}}, nil))
	require.Eventually(t, func() bool { return f.states[0].newest.Load() == 11 }, time.Minute, time.Millisecond)

	var wrong int
	require.NoError(t, f.Differ([]uint64{11, 0, 0}, &wrong))
	require.Zero(t, wrong)
	require.NoError(t, f.Differ([]uint64{11, 4, 0}, &wrong))
	require.Equal(t, 1, wrong)
	var s Sight
	require.NoError(t, f.See(Look{Since: time.Unix(0, 10)}, &s))
	require.Equal(t, Sight{Synced: 1, Since: 1, Lists: 2, Requests: 3, Events: 2, P50: s.P50, P99: s.P99}, s)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Equal(t, []string{"", "7", ""}, []string{w.asked[0].Get("resourceVersion"), w.asked[1].Get("resourceVersion"), w.asked[2].Get("resourceVersion")})
	require.Equal(t, []string{"true", "", "true"}, []string{w.asked[0].Get("sendInitialEvents"), w.asked[1].Get("sendInitialEvents"), w.asked[2].Get("sendInitialEvents")})
}
