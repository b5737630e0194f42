// SPDX-License-Identifier: Apache-2.0

// Package tasks counts a cache's goroutines, so that stopping it can await them all.
package tasks

import (
	"errors"
	"sync"
)

// ErrStopped is returned by a cache whose group is closed.
var ErrStopped = errors.New("the watch cache is stopped")

// Group counts running tasks until it is closed. The zero value is ready to use.
type Group struct {
	mu struct {
		sync.Mutex
		closed bool
	}
	running sync.WaitGroup
}

// Begin adds a task, to be ended by End. It returns false if the group is closed.
func (g *Group) Begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.closed {
		return false
	}
	g.running.Add(1)
	return true
}

// End ends a task added by Begin.
func (g *Group) End() { g.running.Done() }

// Run starts f in a goroutine. It returns false if the group is closed.
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

// Close makes Begin and Run fail and waits for all tasks to end.
func (g *Group) Close() {
	g.mu.Lock()
	g.mu.closed = true
	g.mu.Unlock()
	g.running.Wait()
}
