// SPDX-License-Identifier: Apache-2.0

package child

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgramIsCompiledOnce(t *testing.T) {
	const variable = "WATCHCACHE_TEST_PROGRAM"
	t.Setenv(variable, "")
	compiled := 0
	compile := func() (string, error) {
		compiled++
		return "/somewhere/program", nil
	}
	here := &Program{Variable: variable, Compile: compile}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			path, err := here.Path()
			require.NoError(t, err)
			require.Equal(t, "/somewhere/program", path)
		})
	}
	wg.Wait()
	require.Equal(t, 1, compiled)

	// In a process that was started after that.
	inherited := &Program{Variable: variable, Compile: compile}
	path, err := inherited.Path()
	require.NoError(t, err)
	require.Equal(t, "/somewhere/program", path)
	require.Equal(t, 1, compiled)
}
