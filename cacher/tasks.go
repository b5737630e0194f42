// SPDX-License-Identifier: Apache-2.0

package cacher

import "sync"

// tasks counts what a Cacher has started, so that Stop can await all of it. It
// takes nothing new once it is closed.
type tasks struct {
	mu struct {
		sync.Mutex
		closed bool
	}
	running sync.WaitGroup
}

// begin counts one more, to be ended by end; false once closed.
func (t *tasks) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return false
	}
	t.running.Add(1)
	return true
}

func (t *tasks) end() { t.running.Done() }

// run starts f in a goroutine; false, and nothing started, once closed.
func (t *tasks) run(f func()) bool {
	if !t.begin() {
		return false
	}
	go func() {
		defer t.end()
		f()
	}()
	return true
}

// close takes nothing new from now on and waits for everything to end.
func (t *tasks) close() {
	t.mu.Lock()
	t.mu.closed = true
	t.mu.Unlock()
	t.running.Wait()
}
