// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/wait"
)

// pollInterval is how often something is looked at that gives no signal.
const pollInterval = 200 * time.Millisecond

// command is the example server, and what else the test binary may be.
func command() []string { return []string{os.Args[0]} }

// await polls until condition holds.
func await(t *testing.T, ctx context.Context, what string, condition func(context.Context) (bool, error)) {
	t.Helper()
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		ok, err := condition(ctx)
		last = err
		return ok && err == nil, nil
	})
	require.NoError(t, err, "%s; last error: %v", what, last)
}
