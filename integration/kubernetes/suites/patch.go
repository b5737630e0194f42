// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/insert"
)

// The three places where the tests' servers are configured, and the time that one of them
// is given to start: two cores that also compile need more than ten seconds now and then.
var insertions = []insert.Line{{
	// The servers of package app/testing, and of test/integration/etcd.
	File:   "cmd/kube-apiserver/app/config.go",
	Before: "c.Aggregator = aggregator",
	Text:   "if err := useWatchCache(aggregator, kubeAPIs.ControlPlane.Generic, apiExtensions); err != nil {\nreturn nil, err\n}\n",
}, {
	// A server of the built-in APIs alone.
	File:   "test/integration/framework/test_server.go",
	Before: "if setup.ModifyServerConfig != nil {",
	Text:   "if err := app.UseWatchCache(kubeAPIServerConfig.ControlPlane.Generic); err != nil {\nt.Fatal(err)\n}\n",
}, {
	// A control plane without pods and nodes.
	File:   "pkg/controlplane/apiserver/samples/generic/server/config.go",
	Before: "c.Aggregator = aggregator",
	Text:   "if err := useWatchCache(aggregator, kubeAPIs.Generic, apiExtensions); err != nil {\nreturn nil, err\n}\n",
}, {
	File:    "test/integration/framework/test_server.go",
	Before:  "err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (done bool, err error) {",
	Text:    "err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (done bool, err error) {\n",
	Instead: true,
}}

// The line that a server writes is counted: tests whose servers are not on the cache
// would say nothing.
const serverLine = "The watch cache of this server is"

const chainSource = `package %s

import (
	"fmt"
	"os"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	genericapiserver "k8s.io/apiserver/pkg/server"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/install"
)

func useWatchCache(front *aggregator.Config, builtin *genericapiserver.Config, custom *apiextensions.Config) error {
	implementation, err := install.FromEnvironment()
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "` + serverLine + `", implementation)
	return install.Chain(implementation, front, builtin, custom)
}
`

const aloneSource = `
// UseWatchCache puts a server without a chain on the watch cache.
func UseWatchCache(config *genericapiserver.Config) error {
	implementation, err := install.FromEnvironment()
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "` + serverLine + `", implementation)
	return install.Builtin(implementation, config)
}
`

// sources are the files that are added.
func sources() map[string]string {
	return map[string]string{
		"cmd/kube-apiserver/app/watchcache.go":                            fmt.Sprintf(chainSource, "app") + aloneSource,
		"pkg/controlplane/apiserver/samples/generic/server/watchcache.go": fmt.Sprintf(chainSource, "server"),
	}
}

// patch changes the copy of Kubernetes in dir.
func patch(dir string) error {
	for _, i := range insertions {
		if err := i.Insert(dir); err != nil {
			return err
		}
	}
	for name, source := range sources() {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(source), 0o644); err != nil {
			return err
		}
	}
	return nil
}
