// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/metrics"
)

// speaks is a storage that reports progress.
type speaks struct{}

func (speaks) Silent() bool   { return false }
func (speaks) SetSilent(bool) {}

// reporting is a storage that reports progress at once.
type reporting struct{ report func() }

func (reporting) CurrentWatch() Watch                     { return nil }
func (reporting) ReportsProgress() bool                   { return true }
func (r reporting) RequestProgress(context.Context) error { r.report(); return nil }
func (reporting) ProbeProgress(context.Context) bool      { return true }
func (reporting) WatchHung(time.Duration)                 {}

// finished is a state whose revisions are complete.
type finished struct{}

func (finished) Unfinished() uint64 { return 0 }

// Reads of a resource that changes all the time take its next change for a report; one that
// none follows asks, however many reads begin to wait meanwhile, and so do all once the
// resource is quiet.
func TestReadsOfABusyResourceWaitForItsNextChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		group := &tasks.Group{}
		real := clock.RealClock{}
		waiting := NewWaitingReads(real, time.Minute, (*metrics.Metrics)(nil).For("", "pods"), follows{}, ctx.Done())
		var asked, answered atomic.Int64
		var rv atomic.Uint64
		p := NewProgressRequester(ProgressConfig{
			Clock: real, Waiting: waiting,
			Versions: NewVersionRequests(ctx, real, group, nil, time.Minute, time.Minute, func(context.Context, []string) (Answer, error) { return Answer{}, nil }),
			Storage:  reporting{report: func() { asked.Add(1); waiting.Reached(rv.Load()) }}, State: finished{}, Silence: speaks{},
		})
		go p.Run(ctx)
		synctest.Wait()
		change := func() {
			waiting.Reached(rv.Add(1))
			p.Changed()
		}
		// read waits for the version that the next change has; answered is how many have.
		read := func() {
			go func(rv uint64) {
				if waiting.Wait(ctx, rv) == nil {
					answered.Add(1)
				}
			}(rv.Load() + 1)
			synctest.Wait()
		}
		// changes come apart, each one before after a read; a report has its version too.
		changes := func(d, apart, before time.Duration) {
			for range int(d / apart) {
				time.Sleep(apart - before) // of the bubble, as all below
				read()
				time.Sleep(before)
				change()
			}
			synctest.Wait()
		}
		steady := func(apart, before time.Duration) (requests int64) {
			changes(4*rateInterval, apart, before)
			asked.Store(0)
			answered.Store(0)
			changes(10*apart, apart, before)
			require.EqualValues(t, 10, answered.Load())
			return asked.Load()
		}
		const ms = time.Millisecond
		require.Zero(t, steady(80*ms, nextChangeWait-ms), "the next change is near")
		require.InDelta(t, 6, steady(80*ms, 2*nextChangeWait), 2, "the next change is far: 800 ms have room for eight requests")
		require.EqualValues(t, 10, steady(2*busyGap, 10*ms), "changes are rare")
		require.Zero(t, steady(10*ms, 6*ms))

		// The last change has come: each report is of a version that nobody has told.
		began := time.Now()
		for asked.Load() == 0 {
			rv.Add(1)
			read()
			time.Sleep(time.Millisecond)
		}
		require.LessOrEqual(t, time.Since(began), 25*time.Millisecond, "virtual time: nextChangeWait")

		change()
		time.Sleep(20 * rateInterval)
		asked.Store(0)
		read()
		require.EqualValues(t, 1, asked.Load(), "at once")
		cancel()
		synctest.Wait()
		group.Close()
	})
}
