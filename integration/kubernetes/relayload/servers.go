// SPDX-License-Identifier: Apache-2.0

//go:build unix

package relayload

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// process is a relay or a fleet, with its output in a file.
type process struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{}
}

func startProcess(log, name string, cmd *exec.Cmd) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the process has its own
	if cmd.Stdout == nil {
		cmd.Stdout = file
	}
	cmd.Stderr, cmd.SysProcAttr = file, child.Attributes()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, exited: make(chan struct{})}
	go func() { // ends with the process
		defer close(p.exited)
		_ = cmd.Wait()
	}()
	return p, nil
}

// kill ends the process at once.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// kill ends a process that somebody else awaits.
func kill(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	return nil
}

// fleet is a process with informers.
type fleet struct {
	*process
	*rpc.Client
}

func (r *run) startFleet(server string) (*fleet, error) {
	cmd := exec.Command(r.Binary, FleetCommand)
	cmd.Env = append(os.Environ(), "GOGC=400") // its collector's work is nobody's measure
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Not StdoutPipe: waiting for the process would close it under the client.
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = theirs
	p, err := startProcess(filepath.Join(r.Dir, "fleet.log"), "fleet", cmd)
	_ = theirs.Close()
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	f := &fleet{p, rpc.NewClient(pipes{out, in.(*os.File)})}
	err = f.Call("Fleet.Start", Orders{
		Server: server, Token: r.token, CA: r.ca, Pods: r.numbers,
		Informers: r.Informers, PerConnection: r.PerConnection, Controls: min(r.Controls, r.Informers),
	}, &None{})
	if err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

func (f *fleet) stop() {
	f.kill()
	_ = f.Close()
}

type pipes struct {
	*os.File
	in *os.File
}

func (p pipes) Write(b []byte) (int, error) { return p.in.Write(b) }
func (p pipes) Close() error                { return errors.Join(p.File.Close(), p.in.Close()) }

// startRelay starts a relay at the address of the turn and returns when it is ready.
func (r *run) startRelay(ctx context.Context) (*process, error) {
	p, err := startProcess(filepath.Join(r.Dir, "relay.log"), "relay", exec.Command(r.Relay, append([]string{
		"--kubeconfig=" + r.cluster.Kubeconfig(), "--resources=pods", "--bind-address=127.0.0.1", "--secure-port=" + r.relayPort,
		"--tls-cert-file=" + filepath.Join(r.Dir, "serving.crt"), "--tls-private-key-file=" + filepath.Join(r.Dir, "serving.key"),
	}, r.RelayFlags...)...))
	if err != nil {
		return nil, err
	}
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://127.0.0.1:"+r.relayPort+"/readyz", nil)
		if err == nil {
			err = r.answered(request)
		}
		if err == nil {
			return p, nil
		}
		select {
		case <-p.exited:
			return nil, fmt.Errorf("the relay has ended: see %s/relay.log", r.Dir)
		case <-ctx.Done():
			p.kill()
			return nil, fmt.Errorf("the relay is not ready: %w", errors.Join(ctx.Err(), err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// answered sends a request as the administrator.
func (r *run) answered(request *http.Request) error {
	response, err := r.admin.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	return port, err
}

// taken returns what a process has taken: seconds of CPU, bytes of resident memory now and
// at most.
func taken(pid int) (cpu, resident, peak float64, err error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, 0, 0, err
	}
	stat, err := process.Stat()
	if err != nil {
		return 0, 0, 0, err
	}
	status, err := process.NewStatus()
	return stat.CPUTime(), float64(stat.ResidentMemory()), float64(status.VmHWM), err
}
