// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	keptDevices = 45 // in each namespace
	keptRounds  = 12
)

// streams begins with the state; the bookmark at its end has the mark.
const (
	streams = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=60"
	endMark = "initial-events-end"
)

// keptWays are the ways to get at bytes that are kept.
var keptWays = []struct{ query, mark string }{
	{"", ""}, {"resourceVersion=0", ""}, {"resourceVersion=0&labelSelector=lane+in+(0,1,2)", ""}, {"limit=1000", ""},
	{streams, endMark}, {streams + "&resourceVersion=0", endMark},
}

// TestKeptBytesStayApart: bytes that are kept of lists and of initial events which
// one user may see do not reach another who may not, in whatever form, while both
// ask in turns and devices change, go and come in another namespace.
func TestKeptBytesStayApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	name := func(i int) string { return fmt.Sprintf("device-%03d", i) }
	for _, namespace := range []string{ours, theirs, likeOurs} {
		for i := range keptDevices {
			require.NoError(t, f.put(t.Context(), namespace, name(i), i))
		}
	}
	ctx, tasks := background(t)
	tasks.Go(func() { // until the test ends
		random := rand.New(rand.NewPCG(14, 5))
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			namespace, i := []string{ours, theirs, likeOurs}[random.IntN(3)], random.IntN(keptDevices)
			var err error
			if n%4 == 0 { // a name that moves from one namespace to another
				_, err = f.direct.Delete(ctx, stored(namespace, name(i)))
				namespace = []string{ours, theirs, likeOurs}[random.IntN(3)]
			}
			if err == nil {
				err = f.put(ctx, namespace, name(i), n)
			}
			if ctx.Err() == nil {
				assert.NoError(t, err)
			}
		}
	})
	var compressed, streamed atomic.Int64
	asked := func(client *http.Client, path string, form, way int, zipped bool) answer {
		w, accept := keptWays[way], forms[form]
		if w.mark != "" { // a watch has the metadata of one object at a time
			accept = strings.Replace(accept, "MetadataList", "Metadata", 1)
		}
		a, err := f.ask(ctx, client, path+"?"+w.query, accept, zipped, w.mark)
		if ctx.Err() == nil && assert.NoError(t, err) {
			assert.Equal(t, http.StatusOK, a.status, "%s as %s: %s", path, forms[form], a.body)
		}
		if a.compressed {
			compressed.Add(1)
		}
		if w.mark != "" {
			streamed.Add(1)
		}
		return a
	}
	var readers group
	readers.cancel = func() {}
	for form := range forms {
		readers.Go(func() {
			alices, bounds := f.client(t, alice, form%2 == 0), f.client(t, bound, form%2 == 0)
			for round := range keptRounds {
				for way := range keptWays {
					zipped := (round+way)%2 == 0
					a := asked(alices, []string{everyNS, in(theirs), everyNS}[round%3], form, way, zipped)
					b := asked(bounds, in(ours), form, way, zipped)
					assert.Contains(t, a.body, "secret of "+theirs, "who may see it does, %d %v, %s as %s, gzip %v", a.status, a.header, keptWays[way].query, forms[form], zipped)
					assert.Contains(t, b.body, "secret of "+ours)
					if !assert.False(t, leaks(b), "as %s, gzip %v, %q", forms[form], zipped, keptWays[way].query) {
						return
					}
				}
			}
		})
	}
	readers.Wait()
	require.Greater(t, compressed.Load(), int64(keptRounds))
	require.Greater(t, streamed.Load(), int64(keptRounds))

	page, err := f.ask(ctx, f.client(t, operator, true), "/metrics", "", false, "")
	require.NoError(t, err)
	kept := ""
	for line := range strings.Lines(page.body) {
		if strings.HasPrefix(line, "watchcache_bytes{") && strings.Contains(line, `part="encodings"`) {
			kept = line
		}
	}
	require.NotEmpty(t, kept)
	require.False(t, strings.HasSuffix(kept, " 0\n"), kept)
}
