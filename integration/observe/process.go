// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// process is a child. The goroutine that reads its output and awaits its end is
// started by launch and ended by the end of the child; stop awaits it.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    child.Tail
	exited chan struct{}
	err    error // of the child; readable when exited is closed
}

// launch starts a command. Each line of its standard output is given to line, on
// the goroutine of the process.
func launch(name string, command, env []string, line func(string)) (*process, error) {
	p := &process{name: name, cmd: exec.Command(command[0], command[1:]...), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = &p.log
	p.cmd.SysProcAttr = apart(child.Attributes())
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		defer close(p.exited)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			fmt.Fprintln(&p.log, lines.Text())
			line(lines.Text())
		}
		_, _ = io.Copy(io.Discard, stdout)
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// await returns when ready is closed, or with an error when the process ends or ctx
// does.
func (p *process) await(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case <-p.exited:
		return fmt.Errorf("%s ended before it served: %w; the end of its output:\n%s", p.name, p.err, &p.log)
	case <-ctx.Done():
		return fmt.Errorf("%s does not serve: %w; the end of its output:\n%s", p.name, ctx.Err(), &p.log)
	}
}

// stop asks the process to end and awaits its end; when ctx ends first, the process
// is killed. The error says when the process did not end in good order.
func (p *process) stop(ctx context.Context) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
		p.kill()
		return fmt.Errorf("%s did not end and was killed: %w", p.name, ctx.Err())
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w; the end of its output:\n%s", p.name, p.err, &p.log)
	}
	return nil
}

// kill ends the process at once.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}
