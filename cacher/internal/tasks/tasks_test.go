// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// Close waits for the tasks that run, and refuses others meanwhile and afterwards.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		release := make(chan struct{})
		require.True(t, g.Run(func() { <-release }))
		closed := make(chan struct{})
		go func() {
			g.Close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			require.Fail(t, "Close has not waited")
		default:
		}
		require.False(t, g.Run(func() { panic("a task of a closed group") }))
		close(release)
		<-closed
		require.False(t, g.Begin())
	})
}
