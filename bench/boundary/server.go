// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kube-watchcache/watchcache/integration/observe"
)

// Server is a running server of a stage.
type Server struct {
	child   *observe.Server
	stopped bool
}

// Stop ends the server and returns when it has ended. Stop may be called more
// than once.
func (s *Server) Stop() error {
	if s.stopped {
		return nil
	}
	s.stopped = true
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.child.Stop(ctx)
}

// Kill ends the server at once, and without a word to its clients.
func (s *Server) Kill() {
	s.stopped = true
	s.child.Kill()
}

// awaitCache returns when the server answers from its cache. The shipped cacher
// refuses lists for a while after the server has said that it is ready.
func (s *Server) awaitCache(ctx context.Context) error {
	client, err := s.Connect()
	if err != nil {
		return err
	}
	defer client.Close()
	const interval = 50 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := client.List(ctx, Request{Path: V1, Accept: JSON, Query: url.Values{"resourceVersion": {"0"}}})
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("the cache of the server does not answer: %w: %w", ctx.Err(), err)
		}
	}
}

// CPU is the CPU time that the process has spent so far, in user mode and in the
// kernel, in nanoseconds and not in ticks.
func (s *Server) CPU() (time.Duration, error) { return ProcessCPU(s.child.PID()) }

// ProcessCPU is the CPU time that a process has spent so far.
func ProcessCPU(pid int) (time.Duration, error) { return cpuTime(pid) }

// Memory is what a process takes of the machine's memory, in bytes.
type Memory struct {
	// Resident is what the process takes now, Highest what it has taken at most.
	Resident, Highest int64
}

// Memory reads the memory of the process.
func (s *Server) Memory() (Memory, error) { return ProcessMemory(s.child.PID()) }

// ProcessMemory reads the memory of a process.
func ProcessMemory(pid int) (Memory, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	var m Memory
	for name, to := range map[string]*int64{"VmRSS:": &m.Resident, "VmHWM:": &m.Highest} {
		if *to, err = kilobytes(string(status), name); err != nil {
			return Memory{}, err
		}
	}
	return m, nil
}

// kilobytes returns a field of /proc/PID/status in bytes.
func kilobytes(status, name string) (int64, error) {
	for line := range strings.Lines(status) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == name && fields[2] == "kB" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("the process has no %s: has it ended?", name)
}
