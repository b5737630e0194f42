// SPDX-License-Identifier: Apache-2.0

// Command apiserver is a kube-apiserver with one flag more,
// --watch-cache-implementation, which chooses its watch cache.
package main

import (
	"os"

	"k8s.io/component-base/cli"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/control"
)

func main() { os.Exit(cli.Run(control.APIServer())) }
