// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"time"
)

// Follower is a watcher as the judge of Complete sees it.
type Follower struct {
	Name      string // for messages
	Selection Selection
	// To is the last version that its client has seen; 0: the watch never began.
	To int64
}

// Incomplete tells which followers lack an event up to a version.
func Incomplete(h *History, upTo int64, followers ...Follower) (found Violations) {
	for _, f := range followers {
		if f.To == 0 {
			found.Add(Complete, "watch %s of %v: it never began", f.Name, f.Selection)
		} else if late := h.Expect(f.Selection, f.To, upTo); len(late) > 0 {
			found.Add(Complete, "watch %s of %v: %d events above %d have not come; the first is %v", f.Name, f.Selection, len(late), f.To, late[0])
		}
	}
	return found
}

// Await asks again and again until nothing is found, and returns what is found
// still when ctx ends.
func Await(ctx context.Context, interval time.Duration, look func() Violations) Violations {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		found := look()
		if len(found) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return found
		}
	}
}
