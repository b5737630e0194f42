// SPDX-License-Identifier: Apache-2.0

package fresh

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/metrics"
)

// scriptedWatch is a storage watch that tells what a test sets.
type scriptedWatch struct {
	times   int64
	last    time.Time
	givenUp int
}

func (w *scriptedWatch) Heard() (int64, time.Time) { return w.times, w.last }
func (w *scriptedWatch) Busy() bool                { return false }
func (w *scriptedWatch) GiveUp()                   { w.givenUp++ }

// hangFixture is a detector over a watch, whose storage tells what a test sets.
type hangFixture struct {
	*hangDetector
	clock *clocktesting.FakeClock
	watch *scriptedWatch
}

// newHangFixture returns a detector that first looks when the cache is at 1 and
// storage has told 2.
func newHangFixture(t *testing.T) *hangFixture {
	fake, watch, group := clocktesting.NewFakeClock(time.Unix(0, 0)), &scriptedWatch{}, &tasks.Group{}
	t.Cleanup(group.Close)
	var versions *VersionRequests
	versions = NewVersionRequests(t.Context(), fake, group, nil, time.Minute, time.Minute, func(context.Context, []string) (Answer, error) {
		return Answer{Current: versions.Highest()}, nil
	})
	f := &hangFixture{clock: fake, watch: watch, hangDetector: &hangDetector{
		clock: fake, current: func() Watch { return watch }, versions: versions,
		waiting: NewWaitingReads(fake, time.Minute, (*metrics.Metrics)(nil).For("", "pods"), t.Context().Done()),
		gaveUp:  func(time.Duration) {},
	}}
	f.waiting.Reached(1)
	versions.Told(2)
	f.look(t.Context())
	return f
}

// lookAfter lets time pass and looks.
func (f *hangFixture) lookAfter(t *testing.T, d time.Duration) (givenUp int) {
	f.clock.Step(d)
	f.look(t.Context())
	return f.watch.givenUp
}

// hears has the watch bring one more thing.
func (f *hangFixture) hears() { f.watch.times, f.watch.last = f.watch.times+1, f.clock.Now() }

func TestAWatchThatBringsNothingIsGivenUp(t *testing.T) {
	f := newHangFixture(t)
	require.Zero(t, f.lookAfter(t, hangTimeout-time.Millisecond))
	require.Equal(t, 1, f.lookAfter(t, time.Millisecond))
}

func TestAWatchThatBringsSomethingIsKept(t *testing.T) {
	f := newHangFixture(t)
	for range 5 {
		f.hears()
		require.Zero(t, f.lookAfter(t, hangTimeout))
	}
}

// A watch counts something as brought before the cache has taken it. A look
// between the two must not count the quiet time that follows.
func TestAQuietTimeIsNoHang(t *testing.T) {
	f := newHangFixture(t)
	f.hears()
	require.Zero(t, f.lookAfter(t, time.Millisecond), "heard, and not taken yet")
	f.waiting.Reached(2)
	f.clock.Step(time.Hour) // no read waits, so that nobody looks
	f.versions.Told(3)
	require.Zero(t, f.lookAfter(t, 0), "the first look after the quiet time")
	require.Equal(t, 1, f.lookAfter(t, hangTimeout), "from then on time counts")
}
