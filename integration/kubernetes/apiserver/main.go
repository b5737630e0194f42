// SPDX-License-Identifier: Apache-2.0

// Command apiserver is a kube-apiserver with the flags of the watch cache, as
// --watch-cache-implementation, which chooses it.
package main

import (
	"os"

	"k8s.io/component-base/cli"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/control"
)

func main() { os.Exit(cli.Run(control.APIServer())) }
