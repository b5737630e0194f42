// SPDX-License-Identifier: Apache-2.0

//go:build unix

package load

import (
	"context"
	"errors"
	"sync"
)

// group is goroutines that end with the first error of one.
type group struct {
	tasks sync.WaitGroup
	mu    sync.Mutex
	errs  []error
}

// run calls do on a goroutine; wait awaits it. An error cancels the others.
func (g *group) run(cancel func(), do func() error) {
	g.tasks.Go(func() {
		err := do()
		if err == nil || errors.Is(err, context.Canceled) {
			return
		}
		g.mu.Lock()
		g.errs = append(g.errs, err)
		g.mu.Unlock()
		cancel()
	})
}

// wait awaits all goroutines. Errors are returned once.
func (g *group) wait() error {
	g.tasks.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	err := errors.Join(g.errs...)
	g.errs = nil
	return err
}
