// SPDX-License-Identifier: Apache-2.0

package shared_test

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/internal/shared"
)

// opener counts what it opens and what of it is closed.
type opener struct {
	opened, closed atomic.Int64
	err            error
}

func (o *opener) open() (int64, func(), error) {
	if o.err != nil {
		return 0, nil, o.err
	}
	return o.opened.Add(1), func() { o.closed.Add(1) }, nil
}

func TestLastUserCloses(t *testing.T) {
	var m shared.Map[string, int64]
	var o opener
	first, endFirst, err := m.Use("a", o.open)
	require.NoError(t, err)
	second, endSecond, err := m.Use("a", o.open)
	require.NoError(t, err)
	require.Equal(t, first, second)
	other, endOther, err := m.Use("b", o.open)
	require.NoError(t, err)
	require.NotEqual(t, first, other)
	require.Equal(t, 2, m.Len())

	endFirst()
	endFirst()
	require.Zero(t, o.closed.Load(), "ending twice counts once")
	endSecond()
	require.EqualValues(t, 1, o.closed.Load())
	again, endAgain, err := m.Use("a", o.open)
	require.NoError(t, err)
	require.NotEqual(t, first, again, "a closed value is not used again")
	endAgain()
	endOther()
	require.Zero(t, m.Len())
	require.Equal(t, o.opened.Load(), o.closed.Load())
}

func TestFailureIsNotKept(t *testing.T) {
	var m shared.Map[string, int64]
	o := opener{err: errors.New("out of order")}
	_, _, err := m.Use("a", o.open)
	require.ErrorIs(t, err, o.err)
	require.Zero(t, m.Len())
	o.err = nil
	_, end, err := m.Use("a", o.open)
	require.NoError(t, err)
	end()

	require.Panics(t, func() { _, _, _ = m.Use("a", func() (int64, func(), error) { panic("boom") }) })
	_, _, err = m.Use("a", o.open)
	require.ErrorContains(t, err, "panicked", "who shares the attempt is told")
	_, end, err = m.Use("a", o.open)
	require.NoError(t, err)
	end()
	require.Zero(t, m.Len())
}

// A user who comes while the value is being opened waits for it, and opens none.
func TestUserDuringOpening(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var m shared.Map[string, int64]
	var o opener
	var late sync.WaitGroup
	came := make(chan int64, 1)
	value, end, err := m.Use("a", func() (int64, func(), error) {
		late.Go(func() {
			value, end, err := m.Use("a", o.open)
			if assert.NoError(t, err) {
				came <- value
				end()
			}
		})
		// One processor: the late user goes on until it waits.
		for range 100 {
			runtime.Gosched()
		}
		assert.Zero(t, o.opened.Load(), "another user has opened the value as well")
		assert.Empty(t, came, "another user has the value before it is open")
		assert.Empty(t, m.Open(func(string) bool { return true }))
		return o.open()
	})
	require.NoError(t, err)
	late.Wait()
	require.Equal(t, value, <-came)
	require.Equal(t, []int64{value}, m.Open(func(string) bool { return true }))
	require.Zero(t, o.closed.Load(), "the value has a user")
	end()
	require.EqualValues(t, 1, o.closed.Load())
	require.EqualValues(t, 1, o.opened.Load())
}

// Of users that come at one time one opens and the others get the same value; a user who
// comes and goes, at most one value is open, and none in the end.
func TestConcurrentUse(t *testing.T) {
	var m shared.Map[string, int64]
	var o opener
	together := make(chan struct{})
	values := make(chan int64, 16)
	var users, ends sync.WaitGroup
	ends.Add(1)
	for range cap(values) {
		users.Go(func() {
			<-together
			value, end, err := m.Use("a", o.open)
			if !assert.NoError(t, err) {
				return
			}
			values <- value
			ends.Wait()
			end()
			for range 200 {
				_, end, err := m.Use("a", o.open)
				if !assert.NoError(t, err) {
					return
				}
				end()
			}
		})
	}
	close(together)
	for range cap(values) {
		require.EqualValues(t, 1, <-values)
	}
	ends.Done()
	users.Wait()
	require.Zero(t, m.Len())
	require.Equal(t, o.opened.Load(), o.closed.Load())
}
