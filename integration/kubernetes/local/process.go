// SPDX-License-Identifier: Apache-2.0

//go:build unix

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// lastPatience is how long a server that was asked to end may take: a kube-apiserver lets
// requests end, which may take a minute.
const lastPatience = 2 * time.Minute

// Process is a server of a cluster. The goroutine that awaits it ends with it; Stop
// awaits both.
type Process struct {
	Name string
	// Log is the path of what the server has written.
	Log string

	cmd    *exec.Cmd
	exited chan struct{}
	err    error // of the server; readable when exited is closed
}

// start starts a server with its output in dir/NAME.log. The server is in a process
// group of its own, so that Ctrl-C in a terminal reaches the parent only, which ends its
// servers in order.
func start(dir, binary, name string, args []string) (*Process, error) {
	p := &Process{Name: name, Log: dir + "/" + name + ".log", exited: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the server has its own
	p.cmd = exec.Command(binary, args...)
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = child.Attributes()
	if p.cmd.SysProcAttr == nil {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	p.cmd.SysProcAttr.Setpgid = true
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		defer close(p.exited)
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// PID is the number of the server's process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed when the server has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Ended says how a server ended, and where the reason is, after Exited is closed.
func (p *Process) Ended() error {
	if p.err == nil {
		return fmt.Errorf("%s ended by itself: see %s", p.Name, p.Log)
	}
	return fmt.Errorf("%s ended: %w: see %s", p.Name, p.err, p.Log)
}

// await asks until the server is ready, has ended, or ctx ends.
func (p *Process) await(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.exited:
			return p.Ended()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: see %s", p.Name, errors.Join(ctx.Err(), err), p.Log)
		}
	}
}

// Stop asks the server to end and awaits its end. A server that takes too long is
// killed, and the error says so.
func (p *Process) Stop() error {
	select {
	case <-p.exited:
		return p.Ended()
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	timer := time.NewTimer(lastPatience)
	defer timer.Stop()
	select {
	case <-p.exited:
		return nil
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.exited
		return fmt.Errorf("%s did not end within %s and was killed: see %s", p.Name, lastPatience, p.Log)
	}
}
