// SPDX-License-Identifier: Apache-2.0

// Package child is what tests need around the processes that they start.
package child

import (
	"bytes"
	"sync"
)

// tailBytes is how much of a process's output is worth keeping.
const tailBytes = 16 << 10

// Tail is an io.Writer that keeps the end of what is written to it. The zero
// value is ready; it is safe for concurrent use.
type Tail struct {
	mu struct {
		sync.Mutex
		kept []byte
	}
}

// Write implements io.Writer. Write never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.kept = append(t.mu.kept, p...)
	if over := len(t.mu.kept) - tailBytes; over > 0 {
		t.mu.kept = bytes.Clone(t.mu.kept[over:])
	}
	return len(p), nil
}

// String gives the end of what was written.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.mu.kept)
}
