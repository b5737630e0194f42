// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"flag"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/grpclog"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"
)

// patience bounds the wait for anything that is sure to happen.
const patience = time.Minute

// pollInterval is how often something is looked at that gives no signal.
const pollInterval = 10 * time.Millisecond

// detectMutations is client-go's switch for the detector that ends the process
// when code writes to an object in an informer's store. The switch is read when
// client-go is initialized, before TestMain.
const detectMutations = "KUBE_CACHE_MUTATION_DETECTOR"

func TestMain(m *testing.M) {
	if os.Getenv(detectMutations) != "true" {
		if err := again(); err != nil {
			fmt.Fprintf(os.Stderr, "starting the tests again with %s=true: %v\n", detectMutations, err)
		}
		os.Exit(1)
	}
	flag.Parse()
	// The libraries' logs while servers are stopped are shown only with -v.
	if !testing.Verbose() {
		silence()
	}
	// The first look at this check starts a goroutine that never ends: here, where
	// no test is blamed for it.
	_ = healthz.LogHealthz.Check(nil)
	os.Exit(m.Run())
}

// again puts this very program in the place of the process, with the detector on.
// again returns only if it can't.
func again() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(self, os.Args, append(os.Environ(), detectMutations+"=true"))
}

// silence takes the libraries' logs away, errors too.
func silence() {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	_ = flags.Set("logtostderr", "false")
	_ = flags.Set("stderrthreshold", "FATAL")
	klog.SetOutput(io.Discard)
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
}
