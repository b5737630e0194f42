// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
)

// Of several things that are wrong the page shows the worst.
func TestStates(t *testing.T) {
	lost := &status.Error{Summary: "gone"}
	for want, status := range map[string]cacher.Status{
		"ready":     {Ready: true},
		"silent":    {Ready: true, Silent: true},
		"lost":      {Ready: true, Silent: true, Lost: lost},
		"paused":    {Ready: true, Lost: lost, Paused: &status.Error{}},
		"not ready": {Silent: true},
		"asleep":    {Ready: true, Asleep: true},
	} {
		d := description{status: status}
		got, _, _ := d.state()
		require.Equal(t, want, got)
	}
}

// One line has the result of a shadow.
func TestShadowIsDescribed(t *testing.T) {
	d := description{status: cacher.Status{Ready: true, Shadow: 0.01, Totals: metrics.Totals{
		ShadowCompared: map[string]uint64{"get": 5, "list": 7, "watch": 9}, ShadowDiffered: map[string]uint64{"list": 2},
		ShadowSkipped: map[string]uint64{"room": 1, "excused": 3},
	}}}
	state, _, reason := d.state()
	require.Equal(t, "ready", state)
	require.Equal(t, "in the shadow of the shipped cacher, which answers: 0.01 of the requests are compared, and 2 have differed", reason)
	require.Equal(t, 0.01, d.cache().Shadow)
}

// The names in the JSON are a contract with its readers.
func TestNamesInJSON(t *testing.T) {
	d := description{details: true, values: "shown", status: cacher.Status{
		Watchers: []status.Watcher{{Key: "/pods/a/one"}},
		Ended:    []status.Ended{{Key: "/pods/a/one"}},
		Errors:   []status.Error{{Message: "why"}},
	}}
	encoded, err := json.Marshal(d.cache())
	require.NoError(t, err)
	var cache struct {
		Watchers map[string]any
		Ended    []map[string]any
		Errors   []map[string]any
	}
	require.NoError(t, json.Unmarshal(encoded, &cache))
	names := func(object any) []string { return slices.Sorted(maps.Keys(object.(map[string]any))) }
	require.Equal(t, []string{"items", "live", "parked", "starting", "total", "worstLagEvents", "worstLagSeconds"}, names(cache.Watchers))
	require.Equal(t, []string{"address", "ageSeconds", "capacity", "delivered", "heldBytes", "id", "lagEvents", "lagSeconds", "queued",
		"selection", "started", "state", "user", "userAgent"}, names(cache.Watchers["items"].([]any)[0]))
	require.Equal(t, []string{"address", "ageSeconds", "delivered", "ended", "id", "lagEvents", "reason", "selection", "user", "userAgent"}, names(cache.Ended[0]))
	require.Equal(t, []string{"message", "summary", "time", "times"}, names(cache.Errors[0]))
}
