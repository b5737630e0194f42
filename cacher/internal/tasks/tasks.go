// SPDX-License-Identifier: Apache-2.0

// Package tasks counts the goroutines of a cache, so that stopping it can await
// all of them. The package owns Group.mu, which is held for a flag, and no goroutine of
// its own.
package tasks

import (
	"errors"
	"sync"
)

// ErrStopped is returned by a cache whose group is closed.
var ErrStopped = errors.New("the watch cache is stopped")

// Group counts tasks that are under way. A group takes no new task once it is
// closed. The zero value is ready for use.
type Group struct {
	mu struct {
		sync.Mutex
		closed bool
	}
	running sync.WaitGroup
}

// Begin counts one more task, which End ends. It returns false, and counts
// nothing, once the group is closed.
func (g *Group) Begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.closed {
		return false
	}
	g.running.Add(1)
	return true
}

// End ends a task that Begin has counted.
func (g *Group) End() { g.running.Done() }

// Run starts f in a goroutine. It returns false, and starts nothing, once the
// group is closed.
func (g *Group) Run(f func()) bool {
	if !g.Begin() {
		return false
	}
	go func() {
		defer g.End()
		f()
	}()
	return true
}

// Close refuses new tasks from now on and waits for all tasks to end.
func (g *Group) Close() {
	g.mu.Lock()
	g.mu.closed = true
	g.mu.Unlock()
	g.running.Wait()
}
