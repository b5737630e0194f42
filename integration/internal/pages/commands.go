// SPDX-License-Identifier: Apache-2.0

//go:build unix

package pages

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
	"github.com/kube-watchcache/watchcache/internal/race"
)

// Shell runs a script to its end and returns what it printed. The go command
// builds in it as for a user, with the race detector if the tests have it.
func Shell(dir, script string, env ...string) (string, error) {
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir, cmd.Env = dir, environment(env)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s\n%w\n%s", script, err, out)
	}
	return string(out), err
}

func environment(more []string) []string {
	flags := "GOFLAGS=-buildvcs=false"
	if race.Enabled {
		flags += " -race"
	}
	return append(append(os.Environ(), flags, "GOWORK=off"), more...)
}

// Service is a command that does not end by itself.
type Service struct {
	cmd      *exec.Cmd
	lifeline io.Closer
	drained  chan struct{}
	log      child.Tail
}

// ended is what the shell prints when the command of a service has ended.
const ended = "the command has ended"

// Serve runs a script and then the command, and returns when a line of the output
// contains ready. There is no deadline, because the command may compile; it is an
// error if the command ends before.
//
// The shell ends the command's process group when its standard input is closed, by
// Stop or by the end of this process.
func Serve(dir, script, command, ready string, env ...string) (*Service, error) {
	s := &Service{drained: make(chan struct{})}
	s.cmd = exec.Command("sh", "-euc", fmt.Sprintf("%s\ntrap : TERM\n(%s; echo %s) &\nread -r _ || true\nkill -TERM 0\nwait", script, command, ended))
	s.cmd.Dir, s.cmd.Env = dir, environment(env)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	lifeline, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	s.lifeline = lifeline
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.cmd.Stderr = s.cmd.Stdout
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	isReady := make(chan bool, 1)
	go s.drain(out, ready, isReady)
	if !<-isReady {
		s.Stop()
		return nil, fmt.Errorf("%s: the command ended before it printed %q:\n%s", command, ready, s.Log())
	}
	return s, nil
}

// drain reads the output until the last process that has it has ended. Serve starts
// it, Stop awaits it.
func (s *Service) drain(out io.Reader, ready string, isReady chan<- bool) {
	defer close(s.drained)
	tell := func(ok bool) {
		select {
		case isReady <- ok:
		default: // was told before
		}
	}
	defer tell(false)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fmt.Fprintln(&s.log, lines.Text())
		if strings.Contains(lines.Text(), ready) {
			tell(true)
		}
		if lines.Text() == ended {
			tell(false)
		}
	}
}

// Stop ends the command and awaits the end of all its processes.
func (s *Service) Stop() {
	_ = s.lifeline.Close()
	<-s.drained
	_ = s.cmd.Wait() // a signal has ended it
}

// Log returns the end of what the command has printed.
func (s *Service) Log() string { return s.log.String() }
