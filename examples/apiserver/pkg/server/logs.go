// SPDX-License-Identifier: Apache-2.0

package server

import (
	"flag"
	"fmt"
	"strconv"
	"sync"

	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/server"
)

var logsOnce sync.Once

// ConfigureLogs sends logs of this verbosity to stderr. Only the process's first call has an
// effect.
func ConfigureLogs(verbosity int) error {
	var err error
	logsOnce.Do(func() { err = configureLogs(verbosity) })
	return err
}

func configureLogs(verbosity int) error {
	server.QuietGRPC()
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(verbosity)); err != nil {
		return fmt.Errorf("-v %d: %w", verbosity, err)
	}
	return nil
}
