// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher"
)

// Of several things that are wrong the page shows the worst.
func TestStates(t *testing.T) {
	lost := &cacher.LastError{Summary: "gone"}
	for want, status := range map[string]cacher.Status{
		"ready":     {Ready: true},
		"silent":    {Ready: true, Silent: true},
		"lost":      {Ready: true, Silent: true, Lost: lost},
		"paused":    {Ready: true, Lost: lost, Paused: &cacher.LastError{}},
		"not ready": {Silent: true},
		"asleep":    {Ready: true, Asleep: true},
	} {
		d := description{status: status}
		got, _, _ := d.state()
		require.Equal(t, want, got)
	}
}
