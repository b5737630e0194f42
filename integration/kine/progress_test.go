// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/internal/counting"
)

// TestWatchProgress: whatever version of etcd kine says that it is, its progress
// reports are not believed, and consistent reads are its own.
func TestWatchProgress(t *testing.T) { onEach(t, testWatchProgress) }

func testWatchProgress(t *testing.T, db database) {
	t.Parallel()
	for _, answer := range []string{"3.6.11", "3.5.0", ""} { // the first is kine's default
		t.Run("version "+answer, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, startKine(t, db, func(c *config) { c.version = answer }))
			require.False(t, f.backend.WatchProgress())
			pod := f.create(t, f.stored, "ns/a")
			f.reached(t, pod.ResourceVersion)
			before := f.metric(t, "reads_total", "delegate")
			require.Equal(t, []string{"ns/a"}, names(f.list(t, f.cacher, "", from(""))))
			delegated := f.metric(t, "reads_total", "delegate") - before
			require.EqualValues(t, 1, delegated, "a consistent read is kine's")
		})
	}
}

// TestConsistencyCheck: the cache compares itself with kine at one version, by keys alone,
// while writes go on.
func TestConsistencyCheck(t *testing.T) { onEach(t, testConsistencyCheck) }

func testConsistencyCheck(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db), noProgress, cacher.Configure(func(c *cacher.Config) { c.ConsistencyCheckInterval = time.Second }))
	f.requests.Reset()
	for i := 0; f.metric(t, "consistency_checks_total", "passed") < 3; i++ {
		require.NoError(t, f.ctx.Err())
		f.create(t, f.stored, "ns/pod-"+strconv.Itoa(i))
		f.remove(t, f.stored, "ns/pod-"+strconv.Itoa(i))
		f.create(t, f.stored, "ns/kept-"+strconv.Itoa(i))
	}
	require.Zero(t, f.metric(t, "consistency_checks_total", "failed"), "%+v", f.cacher.Status().LastError)
	ranges := f.requests.Counts()
	require.Len(t, ranges, 1, "%v", ranges)
	require.GreaterOrEqual(t, ranges[counting.Keys], 3)
	require.Zero(t, f.requests.Bytes(), "values crossed the wire")
}
