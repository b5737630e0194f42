// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
)

// A backend that needs 40 ms for a write, as SQLite on a busy disk does, keeps
// the rules: a suite that allows three seconds for a hundred writes judges
// bookmarks, not speed.
func TestSlowWrites(t *testing.T) {
	t.Parallel() // it waits for time to pass
	slow := func(m memory, ctx context.Context, key string, obj, out runtime.Object) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(40 * time.Millisecond):
			return m.Create(ctx, key, obj, out, 0)
		}
	}
	const name = "RunTestOptionalWatchBookmarksWithCorrectResourceVersion"
	all := slices.DeleteFunc(cacherSuites(), func(c clause) bool { return c.name != name })
	require.Len(t, all, 1)
	r := &runner{test: t.Name(), all: []group{{"Cacher", all}}, open: func(*testing.T) Backend {
		m := newMemory()
		return m.backend(broken{memory: m, create: slow})
	}}
	r.judgeAll(t)
}
