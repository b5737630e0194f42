// SPDX-License-Identifier: Apache-2.0

// Command keeper is the first process of the container of an etcd member. Keeper
// runs etcd with the arguments after its own first one, which is the address to
// serve on:
//
//	PUT /?each=300ms  lets each fsync of etcd take that long; 0s: as quick as before
//	GET /             the number of calls of fsync that had to wait so far
//
// Where fsync can't be made slow, the answer to both is 501 Not Implemented with the
// reason, and etcd does not wait for the disk at all. SIGTERM ends etcd in good order,
// and keeper with it.
package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/kube-watchcache/watchcache/integration/internal/slowdisk"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "keeper:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("the first argument must be an address to serve on")
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	cmd := etcd(args[1:])
	var wait func() error
	disk, unavailable := slowdisk.Run(cmd)
	if errors.Is(unavailable, slowdisk.ErrUnavailable) {
		fmt.Fprintln(os.Stderr, "keeper:", unavailable)
		cmd = etcd(append(args[1:], "--unsafe-no-fsync"))
		if err := cmd.Start(); err != nil {
			return err
		}
		wait = cmd.Wait
	} else if unavailable != nil {
		return unavailable
	} else {
		wait = disk.Wait
	}
	// Both goroutines end with the process.
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	go func() {
		err := http.ListenAndServe(args[0], control{disk, unavailable})
		fmt.Fprintln(os.Stderr, "keeper:", err)
	}()
	return wait()
}

func etcd(args []string) *exec.Cmd {
	cmd := exec.Command("etcd", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// control serves what makes the disk slow.
type control struct {
	disk        *slowdisk.Disk
	unavailable error
}

// ServeHTTP implements http.Handler.
func (c control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.unavailable != nil {
		http.Error(w, c.unavailable.Error(), http.StatusNotImplemented)
		return
	}
	if r.Method == http.MethodPut {
		each, err := time.ParseDuration(r.URL.Query().Get("each"))
		if err != nil {
			http.Error(w, fmt.Sprintf("each: %v", err), http.StatusBadRequest)
			return
		}
		c.disk.Delay(each)
	}
	fmt.Fprintln(w, c.disk.Delayed())
}
