// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
	"github.com/kube-watchcache/watchcache/integration/internal/slowdisk"
)

// process runs etcd as a child of the test. The goroutine that waits for the
// child is started by start, ended by the child's end, and awaited by stop and
// close.
type process struct {
	path   string
	args   []string
	data   string
	log    child.Tail
	cmd    *exec.Cmd
	exited <-chan struct{}
	// slowable asks for a disk that can be made slow: disk, or nil and the reason.
	slowable   bool
	disk       *slowdisk.Disk
	undiskable error
}

func newProcess(_ context.Context, port int, cfg Config) (runner, string, error) {
	b, err := etcdBinary()
	if err != nil {
		return nil, "", err
	}
	p := &process{path: b.path, data: filepath.Join(cfg.Dir, fmt.Sprintf("etcd-%d", port))}
	p.args = cfg.arguments(fmt.Sprintf("http://127.0.0.1:%d", port), p.data)
	return p, "compiled from " + etcdPackage + ", " + b.hash[:12], nil
}

func (p *process) start(context.Context) (<-chan struct{}, error) {
	p.disk, p.undiskable = nil, nil
	if !p.slowable {
		return p.startWith(p.command(p.args))
	}
	cmd := p.command(p.args)
	disk, err := slowdisk.Run(cmd)
	if errors.Is(err, slowdisk.ErrUnavailable) {
		p.undiskable = err
		return p.startWith(p.command(append(slices.Clone(p.args), noSync)))
	}
	if err != nil {
		return nil, err
	}
	p.cmd, p.disk = cmd, disk
	p.exited = disk.Exited()
	return p.exited, nil
}

// command is a command that was not started.
func (p *process) command(args []string) *exec.Cmd {
	// The command's life is not that of a context: stop and close end it.
	cmd := exec.Command(p.path, args...)
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		// etcd takes these for flags of its own.
		return strings.HasPrefix(v, "ETCD_")
	})
	cmd.SysProcAttr = child.Attributes()
	return cmd
}

func (p *process) startWith(cmd *exec.Cmd) (<-chan struct{}, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	exited := make(chan struct{})
	p.cmd, p.exited = cmd, exited
	go func() {
		defer close(exited)
		_ = cmd.Wait()
	}()
	return exited, nil
}

func (p *process) stop(ctx context.Context) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("etcd does not stop: %w", ctx.Err())
	}
}

func (p *process) pause(context.Context) error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return child.AwaitStopped(p.cmd.Process.Pid)
}

func (p *process) resume(context.Context) error { return p.signal(syscall.SIGCONT) }

func (p *process) close(context.Context) error {
	if p.cmd == nil {
		return nil
	}
	// A killed process ends even when it is paused.
	_ = p.signal(syscall.SIGKILL)
	<-p.exited
	return os.RemoveAll(p.data)
}

// kill ends the server at once, paused or not, and keeps its data.
func (p *process) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.exited
	return nil
}

func (p *process) signal(s os.Signal) error {
	if p.cmd == nil {
		return errors.New("etcd was not started")
	}
	return p.cmd.Process.Signal(s)
}

func (p *process) output(context.Context) string { return p.log.String() }
