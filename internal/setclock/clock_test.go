// SPDX-License-Identifier: Apache-2.0

package setclock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/kube-watchcache/watchcache/internal/setclock"
)

func TestClock(t *testing.T) {
	for _, by := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			c := &setclock.Clock{}
			before := c.Now()
			c.Set(by)
			time.Sleep(time.Second)
			after := c.Now()
			assert.Equal(t, time.Second, after.Sub(before), "set by %v: the time that has passed", by)
			assert.Equal(t, time.Second, c.Since(before), "set by %v: the time that has passed, by the clock", by)
			assert.Equal(t, int64(by/time.Second)+1, after.Unix()-before.Unix(), "set by %v: the time of day went from %v to %v", by, before, after)
			c.Stand(time.Hour)
			assert.Equal(t, time.Second+time.Hour, c.Since(before), "the time that has passed when the machine stood for an hour")
		})
	}
}

// The deadline of a context stays where it is when the clock is set.
func TestWithTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &setclock.Clock{}
		c.Set(24 * time.Hour)
		ctx, cancel := c.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c.Set(-48 * time.Hour)
		deadline, ok := ctx.Deadline()
		assert.True(t, ok)
		assert.Equal(t, time.Minute, deadline.Sub(c.Now()), "until the deadline")
		time.Sleep(time.Minute - time.Nanosecond)
		assert.NoError(t, ctx.Err())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
	})
}
