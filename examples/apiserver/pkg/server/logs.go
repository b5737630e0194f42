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

// ConfigureLogs sends to stderr what the verbosity asks for. Logs belong to the
// process, so only the first call has an effect.
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
