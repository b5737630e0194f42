// SPDX-License-Identifier: Apache-2.0

package slowdisk

import (
	"context"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

// Disk is the disk of one process, as its fsync and fdatasync see it. Its methods
// are safe for concurrent use.
type Disk struct {
	// exited is closed when the process has ended and nobody answers its system
	// calls any more; failure is set before.
	exited  chan struct{}
	failure error
	delayed atomic.Int64
	mu      struct {
		sync.Mutex
		each time.Duration
		// changed is closed when each changes.
		changed chan struct{}
	}
}

// Run starts the command and returns when it runs. The process begins with a quick
// disk. The command must not be started otherwise, nor waited for: see Wait. The
// goroutine that Run starts is bound to a thread, which is the parent of the
// process; it ends with the process.
func Run(cmd *exec.Cmd) (*Disk, error) {
	d := &Disk{exited: make(chan struct{})}
	d.mu.changed = make(chan struct{})
	if err := d.run(cmd); err != nil {
		return nil, err
	}
	return d, nil
}

// Delay lets each fsync and fdatasync take that long from now on, those that have
// begun included, counted from their beginning. 0: the disk is quick again.
func (d *Disk) Delay(each time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.each = each
	close(d.mu.changed)
	d.mu.changed = make(chan struct{})
}

// Delayed is how many calls of fsync and fdatasync had to wait so far.
func (d *Disk) Delayed() int64 { return d.delayed.Load() }

// Exited is closed when the process has ended.
func (d *Disk) Exited() <-chan struct{} { return d.exited }

// Wait waits for the end of the process and returns what the command's Wait said.
func (d *Disk) Wait() error {
	<-d.exited
	return d.failure
}

// hold returns when a call that begins now is over.
func (d *Disk) hold(ctx context.Context) {
	began, counted := time.Now(), false
	for {
		d.mu.Lock()
		each, changed := d.mu.each, d.mu.changed
		d.mu.Unlock()
		left := each - time.Since(began)
		if left <= 0 {
			return
		}
		if !counted {
			d.delayed.Add(1)
			counted = true
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}
