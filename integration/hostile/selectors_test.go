// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	selectorEvents = 40
	selectorPace   = 50 * time.Millisecond
)

// TestSelectors: watches with selectors of any length leave other users' watches as they
// are. The latency of an event is compared with that in the same server before, in turns.
func TestSelectors(t *testing.T) {
	f := newFixture(t)
	for i := range 20 {
		require.NoError(t, f.put(t.Context(), ours, fmt.Sprint("device-", i), i))
	}
	require.NoError(t, f.put(t.Context(), theirs, "device", 0))
	values := func(n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf("v%05d", i)
		}
		return strings.Join(all, ",")
	}
	// Those of which there are many select nothing, which the last requirement decides.
	for _, hostile := range []struct {
		name     string
		watches  int
		selector func(i int) url.Values
	}{
		{"ten with 100,000 values", 10, func(i int) url.Values {
			return url.Values{"labelSelector": {fmt.Sprintf("lane notin (%s,x%d)", values(100_000), i)}}
		}},
		{"a thousand with 1,000 values", 1000, func(i int) url.Values {
			return url.Values{"labelSelector": {fmt.Sprintf("lane notin (%s,x%d),zone", values(1000), i)}}
		}},
		{"a thousand with 400 fields", 1000, func(i int) url.Values {
			return url.Values{"fieldSelector": {strings.Repeat(fmt.Sprintf("metadata.name!=x%d,", i), 400) + "metadata.namespace!=" + ours}}
		}},
	} {
		t.Run(hostile.name, func(t *testing.T) {
			var without, with []time.Duration
			without = f.latency(t, without)
			for range 2 {
				ctx, cancel := context.WithCancel(t.Context())
				f.openMany(ctx, t, hostile.watches, hostile.selector)
				with = f.latency(t, with)
				cancel()
				f.awaitNoWatch(t)
				without = f.latency(t, without)
			}
			slices.Sort(without)
			slices.Sort(with)
			at := func(all []time.Duration, percent int) time.Duration { return all[len(all)*percent/100] }
			fmt.Printf("hostile selectors: %s: the median latency of others %v, without %v; the ninth decile %v, without %v\n",
				hostile.name, at(with, 50), at(without, 50), at(with, 90), at(without, 90))
			const jitter = 2 * time.Millisecond // of two cores, one of which is busy for the hostile watches
			assert.LessOrEqual(t, at(with, 50), 2*at(without, 50)+jitter, "the median latency of other watches")
		})
	}
	require.True(t, f.Alive())
	long := url.Values{"labelSelector": {strings.Repeat("k!=v,", 10_000) + "k!=v"}}.Encode()
	for _, query := range []string{"?", "?watch=true&"} {
		a, err := f.ask(t.Context(), f.client(t, bound, true), in(ours)+query+long, asJSON, false, "")
		require.NoError(t, err)
		require.Equal(t, http.StatusBadRequest, a.status, "%.200s", a.body)
		require.Contains(t, a.body, "10001 requirements")
	}
}

// openMany opens watches of the user who is bound to a namespace, and reads them until the
// context ends.
func (f *fixture) openMany(ctx context.Context, t *testing.T, watches int, selector func(i int) url.Values) {
	t.Helper()
	var clients [16]*http.Client
	for i := range clients {
		clients[i] = f.client(t, bound, true)
	}
	begun, opening := make(chan error), make(chan struct{}, len(clients)) // more at a time would be refused
	for i := range watches {
		go func() { // ends with the context
			opening <- struct{}{}
			query := selector(i)
			query.Set("watch", "true")
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.Config.Host+in(ours)+"?"+query.Encode(), nil)
			if err != nil {
				<-opening
				begun <- err
				return
			}
			request.Header.Set("Accept", asJSON)
			response, err := clients[i%len(clients)].Do(request)
			if err == nil && response.StatusCode != http.StatusOK {
				err = fmt.Errorf("the watch is answered with %d", response.StatusCode)
			}
			<-opening
			begun <- err
			if err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		}()
	}
	for range watches {
		require.NoError(t, <-begun)
	}
}

// latency changes a device of either namespace at a pace, and adds how long each change of
// theirs takes to a watch of alice's.
func (f *fixture) latency(t *testing.T, all []time.Duration) []time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.Config.Host+in(theirs)+"?watch=true", nil)
	require.NoError(t, err)
	request.Header.Set("Accept", asJSON)
	response, err := f.client(t, alice, true).Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	await := func(mark string) {
		for lines.Scan() {
			if bytes.Contains(lines.Bytes(), []byte(mark)) {
				return
			}
		}
		require.FailNow(t, "the watch has ended", "before %s: %v", mark, lines.Err())
	}
	tick := time.NewTicker(selectorPace)
	defer tick.Stop()
	for i := range selectorEvents {
		<-tick.C
		change := int(time.Now().UnixNano())
		require.NoError(t, f.put(ctx, ours, fmt.Sprint("device-", i%20), i))
		begun := time.Now()
		require.NoError(t, f.put(ctx, theirs, "device", change))
		await(fmt.Sprintf(`"change":"%d"`, change))
		all = append(all, time.Since(begun))
	}
	return all
}

// awaitNoWatch waits until the server has noticed that its clients have gone.
func (f *fixture) awaitNoWatch(t *testing.T) {
	t.Helper()
	client := f.client(t, alice, true)
	require.Eventually(t, func() bool { return f.watchers(t.Context(), t, client) == 0 }, patience, 100*time.Millisecond, "watches are left")
}
