// SPDX-License-Identifier: Apache-2.0

// Package etcdserver gives a test a real etcd server of its own: in a
// container, as a process, or inside the test's process.
//
// The environment variable ETCD_MODE (container, process or embedded) demands
// one of them, and a mode that is demanded and can't be had fails the test.
// Without it a container is used where a container engine answers, and a
// process elsewhere. Container and process run the etcd that go.mod requires:
// it is compiled when it is first needed, and the image is built from scratch
// around it. ETCD_IMAGE names an image to use instead.
//
// Servers listen on free ports of 127.0.0.1, without TLS and, unless
// [Config.Sync] is set, without waiting for the disk.
package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// Mode says how a server runs.
type Mode string

// The modes. Embedded can neither be paused nor survive its test's process.
const (
	Container Mode = "container"
	Process   Mode = "process"
	Embedded  Mode = "embedded"
)

// Names of the environment variables that choose.
const (
	modeVariable  = "ETCD_MODE"
	imageVariable = "ETCD_IMAGE"
)

// patience bounds every wait for a server: to be ready, to stop. Compiling one
// is not waited for in it, see Prepare.
const patience = 2 * time.Minute

// ErrUnsupported is what Pause and Resume return for an embedded server.
var ErrUnsupported = fmt.Errorf("etcd server: not possible in this mode: %w", errors.ErrUnsupported)

// Config describes a server. The zero value is a good one.
type Config struct {
	// Mode demands a mode. Empty: that of ETCD_MODE, or the best to be had.
	Mode Mode
	// Sync makes etcd wait for the disk, as it does in production. Without it
	// a crash of the machine, but not one of etcd, loses data.
	Sync bool
	// Dir is where the data is kept; it must exist. A container keeps its
	// data to itself and ignores it.
	Dir string
	// Streams is how many streams a connection of a client may have; 0: any number.
	// An embedded server ignores it.
	Streams int
}

// Server is one etcd server. Its methods are for one goroutine at a time,
// but for Endpoints, Mode and String.
type Server struct {
	mode     Mode
	about    string
	endpoint string
	runner   runner
	running  bool
	closed   bool
}

// runner is one way to run a server on a port that does not change. No method
// is called twice in a row, but for close.
type runner interface {
	// start runs the server on the data that it had before, if any. That it
	// serves is for the caller to wait for; exited is closed, with the reason
	// readable from output, when it ends by itself.
	start(ctx context.Context) (exited <-chan struct{}, err error)
	// stop ends the server in good order and keeps its data.
	stop(ctx context.Context) error
	pause(ctx context.Context) error
	resume(ctx context.Context) error
	// close ends the server, in whatever state it is, and removes all that
	// start made.
	close(ctx context.Context) error
	// output gives the end of what the server has written.
	output(ctx context.Context) string
}

// Start starts a server for tb, which ends with it. Start fails tb when there
// is no server to be had, and prints once which kind the run uses.
func Start(tb testing.TB, cfg Config) *Server {
	tb.Helper()
	if cfg.Dir == "" {
		cfg.Dir = tb.TempDir()
	}
	if err := Prepare(cfg.Mode); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := New(ctx, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if tb.Failed() && s.mode != Embedded {
			tb.Logf("the end of the etcd server's output:\n%s", s.runner.output(ctx))
		}
		if err := s.Close(); err != nil {
			tb.Errorf("etcd server: %v", err)
		}
	})
	announce(s)
	tb.Log(s)
	return s
}

// Prepare compiles what a server in the mode needs, if it needs anything and it
// has not been compiled yet; an empty mode is chosen as New does. Prepare takes
// as long as it takes, so that a deadline for New must begin after it.
func Prepare(mode Mode) error {
	mode, err := choose(context.Background(), mode, os.Getenv)
	if err != nil {
		return err
	}
	switch {
	case mode == Container && os.Getenv(imageVariable) == "":
		_, err = etcdImage()
	case mode == Process:
		_, err = etcdBinary()
	}
	if err != nil {
		return fmt.Errorf("etcd server (%s): %w", mode, err)
	}
	return nil
}

// New starts a server and returns when it serves. The caller closes it, and
// calls Prepare before if ctx has a deadline.
func New(ctx context.Context, cfg Config) (*Server, error) {
	mode, err := choose(ctx, cfg.Mode, os.Getenv)
	if err != nil {
		return nil, err
	}
	if cfg.Dir == "" && mode != Container {
		return nil, errors.New("etcd server: Config.Dir: must not be empty")
	}
	// Somebody else may take the port between the look and the use.
	const tries = 5
	for try := 1; ; try++ {
		s, err := newOnPort(ctx, mode, cfg)
		if err == nil {
			return s, nil
		}
		if try == tries || !portTaken(err) {
			return nil, fmt.Errorf("etcd server (%s): %w", mode, err)
		}
	}
}

func newOnPort(ctx context.Context, mode Mode, cfg Config) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &Server{mode: mode, endpoint: fmt.Sprintf("http://127.0.0.1:%d", port)}
	switch mode {
	case Container:
		s.runner, s.about, err = newContainer(ctx, port, cfg)
	case Process:
		s.runner, s.about, err = newProcess(ctx, port, cfg)
	case Embedded:
		s.runner, s.about, err = newEmbedded(s.endpoint, cfg)
	}
	if err != nil {
		return nil, err
	}
	if err := s.Restart(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Endpoints gives the client URLs. They stay the same over a restart.
func (s *Server) Endpoints() []string { return []string{s.endpoint} }

// Mode gives the mode in which the server runs.
func (s *Server) Mode() Mode { return s.mode }

// PID is the process of a server in the mode Process, and 0 in the other modes.
func (s *Server) PID() int {
	if p, ok := s.runner.(*process); ok && p.cmd != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Metric is a figure of the server's own metrics, by its name with its labels, as
// its page has them.
func (s *Server) Metric(ctx context.Context, name string) (float64, error) {
	return metric(ctx, s.endpoint, name)
}

// String names the mode and what runs.
func (s *Server) String() string { return fmt.Sprintf("etcd: %s (%s)", s.mode, s.about) }

// Stop ends the server in good order; its data is kept for Restart.
func (s *Server) Stop(ctx context.Context) error {
	if s.closed || !s.running {
		return nil
	}
	s.running = false
	return s.runner.stop(ctx)
}

// Restart stops the server, if it runs, starts it on the data that it had, and
// returns when it serves again.
func (s *Server) Restart(ctx context.Context) error {
	if s.closed {
		return errors.New("etcd server: closed")
	}
	if err := s.Stop(ctx); err != nil {
		return err
	}
	exited, err := s.runner.start(ctx)
	if err != nil {
		return err
	}
	s.running = true
	if err := waitReady(ctx, s.endpoint, exited); err != nil {
		return fmt.Errorf("%w; the end of its output:\n%s", err, s.runner.output(context.WithoutCancel(ctx)))
	}
	return nil
}

// Pause freezes the server: its connections stay open, and nothing answers.
func (s *Server) Pause(ctx context.Context) error { return s.runner.pause(ctx) }

// Resume ends a Pause.
func (s *Server) Resume(ctx context.Context) error { return s.runner.resume(ctx) }

// Close ends the server, paused or not, and removes what it left. Close may be
// called more than once.
func (s *Server) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.runner.close(ctx)
}

// choose settles the mode: the one that is demanded, or the best to be had.
func choose(ctx context.Context, demanded Mode, getenv func(string) string) (Mode, error) {
	mode, _, err := chooseFor(ctx, demanded, getenv)
	return mode, err
}

// chooseFor also says why.
func chooseFor(ctx context.Context, demanded Mode, getenv func(string) string) (mode Mode, reason string, err error) {
	name := "Config.Mode"
	reason = "the test demands it"
	if demanded == "" {
		demanded, name = Mode(getenv(modeVariable)), modeVariable
		reason = fmt.Sprintf("%s=%s demands it", name, demanded)
	}
	if image := getenv(imageVariable); image != "" && demanded == "" {
		demanded, name = Container, imageVariable+"="+image
		reason = name + " demands it"
	}
	switch demanded {
	case "":
		if err := engineErr(ctx); err != nil {
			return Process, fmt.Sprintf("no container engine answers: %v", err), nil
		}
		return Container, "a container engine answers", nil
	case Container:
		if err := engineErr(ctx); err != nil {
			return "", "", fmt.Errorf("etcd server: %s demands a container, and no engine answers: %w", name, err)
		}
		return Container, reason, nil
	case Process, Embedded:
		return demanded, reason, nil
	default:
		return "", "", fmt.Errorf("etcd server: %s: unknown mode %q, it is one of container, process, embedded", name, demanded)
	}
}

var announced sync.Map

// announce prints a server on the standard output, the first time that there
// is one of its kind.
func announce(s *Server) {
	if _, again := announced.LoadOrStore(s.String(), true); !again {
		fmt.Println(s)
	}
}
