// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"context"
	"errors"
	"sync/atomic"
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

func (w *scriptedWatch) Received() (int64, time.Time) { return w.times, w.last }
func (w *scriptedWatch) Busy() bool                   { return false }
func (w *scriptedWatch) GiveUp()                      { w.givenUp++ }

// hangFixture is a detector over a watch, whose storage tells what a test sets.
type hangFixture struct {
	*hangDetector
	clock *clocktesting.FakeClock
	watch *scriptedWatch
	// answer is what storage tells when asked for its version, asked how often it
	// was; told has how long each watch that was given up had brought nothing.
	answer func() (Answer, error)
	asked  atomic.Int64
	told   []time.Duration
	// silent counts how often storage was found to be.
	silent int
}

// newHangFixture returns a detector that first looks when the cache is at 1 and
// storage has told 2.
func newHangFixture(t *testing.T) *hangFixture {
	fake, group := clocktesting.NewFakeClock(time.Unix(0, 0)), &tasks.Group{}
	t.Cleanup(group.Close)
	f := &hangFixture{clock: fake, watch: &scriptedWatch{}}
	versions := NewVersionRequests(t.Context(), fake, group, nil, time.Minute, time.Minute, func(context.Context, []string) (Answer, error) {
		f.asked.Add(1)
		return f.answer()
	})
	f.answer = func() (Answer, error) { return Answer{Current: versions.Highest()}, nil }
	f.hangDetector = &hangDetector{
		ProgressConfig: &ProgressConfig{
			Clock: fake, Storage: f, Versions: versions,
			Waiting: NewWaitingReads(fake, time.Minute, (*metrics.Metrics)(nil).For("", "pods"), follows{}, t.Context().Done()),
		},
		markSilent: func() { f.silent++ },
	}
	f.Waiting.Reached(1)
	versions.Told(2)
	f.look(t.Context())
	return f
}

// follows is a cache that is never paused.
type follows struct{}

func (follows) Follows() (bool, <-chan struct{}) { return true, nil }

// The fixture is the detector's storage.

func (f *hangFixture) CurrentWatch() Watch {
	if f.watch == nil {
		return nil
	}
	return f.watch
}
func (f *hangFixture) WatchHung(waited time.Duration)        { f.told = append(f.told, waited) }
func (f *hangFixture) ReportsProgress() bool                 { return true }
func (f *hangFixture) RequestProgress(context.Context) error { return nil }
func (f *hangFixture) ProbeProgress(context.Context) bool    { return true }

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
	require.Empty(t, f.told)
	require.Equal(t, 1, f.lookAfter(t, time.Millisecond))
	require.Equal(t, []time.Duration{hangTimeout}, f.told)
}

// Storage whose reports take long has as long.
func TestAWatchOfSlowStorageIsKept(t *testing.T) {
	f := newHangFixture(t)
	f.ReportDelay = 5 * time.Second
	require.Zero(t, f.lookAfter(t, f.ReportDelay-time.Millisecond))
	require.Equal(t, 1, f.lookAfter(t, time.Millisecond))
}

// Storage that does not answer, or has nothing that the cache lacks, would bring no
// more by another watch.
func TestAWatchIsKeptUnlessStorageIsAhead(t *testing.T) {
	for name, answer := range map[string]func() (Answer, error){
		"no answer":              func() (Answer, error) { return Answer{Current: 2}, errors.New("for the test") },
		"the version that it is": func() (Answer, error) { return Answer{Current: 1}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			f := newHangFixture(t)
			f.answer = answer
			require.Zero(t, f.lookAfter(t, hangTimeout))
			require.EqualValues(t, 1, f.asked.Load())
			require.Zero(t, f.lookAfter(t, hangTimeout-time.Millisecond), "the time counts from the answer on")
			require.EqualValues(t, 1, f.asked.Load())
		})
	}
}

// Storage is not asked while the cache has what storage has told.
func TestAWatchWithNothingToBringIsNotLookedInto(t *testing.T) {
	f := newHangFixture(t)
	f.Waiting.Reached(2)
	for range 5 {
		require.Zero(t, f.lookAfter(t, hangTimeout))
	}
	require.Zero(t, f.asked.Load())
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
	f.Waiting.Reached(2)
	f.clock.Step(time.Hour) // no read waits, so that nobody looks
	f.Versions.Told(3)
	require.Zero(t, f.lookAfter(t, 0), "the first look after the quiet time")
	require.Equal(t, 1, f.lookAfter(t, hangTimeout), "from then on time counts")
}

// A change that comes long after the reads were answered says nothing about how
// long they had to wait.
func TestAQuietTimeDoesNotLengthenTheTimeout(t *testing.T) {
	f := newHangFixture(t)
	f.clock.Step(time.Millisecond)
	f.hears()
	f.Waiting.Reached(2) // no read waits any more, so that nobody looks
	f.clock.Step(time.Hour)
	f.hears()
	f.Waiting.Reached(3)
	f.Versions.Told(4)
	require.Zero(t, f.lookAfter(t, 0), "the first look after the quiet time")
	require.Equal(t, 1, f.lookAfter(t, hangTimeout))
}

// hearsLate has the watch bring what reads wait for, after four intervals.
func (f *hangFixture) hearsLate(t *testing.T) {
	t.Helper()
	for range 3 {
		require.Zero(t, f.lookAfter(t, progressInterval))
	}
	f.clock.Step(progressInterval)
	f.hears()
	f.Waiting.Reached(2)
}

// A watch that is slow, and brings what reads wait for, has twice its time the
// next time.
func TestASlowWatchHasMoreTime(t *testing.T) {
	f := newHangFixture(t)
	f.hearsLate(t)
	f.Versions.Told(3)
	require.Zero(t, f.lookAfter(t, 0), "brought after four intervals")
	require.Zero(t, f.lookAfter(t, 8*progressInterval-time.Millisecond))
	require.Equal(t, 1, f.lookAfter(t, time.Millisecond))
}

// The same, when somebody looks in between, while there is nothing to bring.
func TestASlowWatchThatHasCaughtUpHasMoreTime(t *testing.T) {
	f := newHangFixture(t)
	f.hearsLate(t)
	require.Zero(t, f.lookAfter(t, 0), "nothing is to be brought")
	f.Versions.Told(3)
	require.Zero(t, f.lookAfter(t, 0), "the first look since")
	require.Zero(t, f.lookAfter(t, 8*progressInterval-time.Millisecond))
	require.Equal(t, 1, f.lookAfter(t, time.Millisecond))
}

// The time that a watch took is not counted from when the one before it began to hang.
func TestANewWatchHasNoMoreTime(t *testing.T) {
	f := newHangFixture(t)
	for range 3 {
		require.Zero(t, f.lookAfter(t, progressInterval))
	}
	f.watch = &scriptedWatch{}
	f.clock.Step(progressInterval)
	f.hears()
	require.Zero(t, f.lookAfter(t, 0), "the first look at the new watch")
	require.Zero(t, f.lookAfter(t, hangTimeout-time.Millisecond))
	require.Equal(t, 1, f.lookAfter(t, time.Millisecond))
}

// From the third watch on that brings nothing, each one has twice the time of the one
// before it, until a watch brings something.
func TestWatchesThatHangOneAfterAnotherHaveMoreTime(t *testing.T) {
	f := newHangFixture(t)
	require.Equal(t, 1, f.lookAfter(t, hangTimeout))
	for i, want := range []time.Duration{hangTimeout, 2 * hangTimeout} {
		f.watch = &scriptedWatch{}
		require.Zero(t, f.lookAfter(t, 0), "the first look at the new watch")
		require.Zero(t, f.lookAfter(t, want-time.Millisecond))
		require.Zero(t, f.silent)
		require.Equal(t, 1-i, f.lookAfter(t, time.Millisecond), "the second one that brings nothing is kept")
		require.Equal(t, i, f.silent)
	}
	f.watch = &scriptedWatch{}
	require.Zero(t, f.lookAfter(t, 0))
	f.hears()
	require.Zero(t, f.lookAfter(t, 0))
	require.Equal(t, 1, f.lookAfter(t, hangTimeout))
}

// Nothing is looked into while no watch is open.
func TestNoWatchIsNoHang(t *testing.T) {
	f := newHangFixture(t)
	f.watch = nil
	for range 5 {
		f.clock.Step(hangTimeout)
		f.look(t.Context())
	}
	require.Zero(t, f.asked.Load())
	require.Empty(t, f.told)
}
