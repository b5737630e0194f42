// SPDX-License-Identifier: Apache-2.0

// Command computed is an API server without a database. Every second, it computes a Load for each
// CPU and each process group from /proc. It serves only this machine:
//
//	go run -tags noembeddedetcd .
//	kubectl --kubeconfig .run/kubeconfig get loads -w
package main

import (
	"fmt"
	"net"
	"os"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/component-base/cli"
	openapi "k8s.io/kube-openapi/pkg/common"

	"github.com/kube-watchcache/watchcache/devserver"
)

func main() {
	options, runDir := genericoptions.NewRecommendedOptions("", nil), ".run"
	options.Etcd = nil // drop the flags of etcd
	options.SecureServing.BindAddress, options.SecureServing.BindPort, options.SecureServing.Required = net.IPv4(127, 0, 0, 1), 8443, true
	command := &cobra.Command{
		Use:          "loads",
		Short:        "Serves what this machine's CPUs and process groups do",
		Args:         cobra.NoArgs,
		SilenceUsage: true, // on errors; --help prints it
		RunE: func(command *cobra.Command, _ []string) error {
			if err := utilerrors.NewAggregate(devserver.Validate(options, command.Flags())); err != nil {
				return err
			}
			config := genericapiserver.NewRecommendedConfig(codecs)
			config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
			// kubectl explain requires generated definitions, as in examples/minimal of watchcache.
			config.OpenAPIV3Config, config.SkipOpenAPIInstallation = &openapi.OpenAPIV3Config{IgnorePrefixes: []string{"/apis/"}, Definitions: map[string]openapi.OpenAPIDefinition{}}, true
			// In a cluster, use options.ApplyTo and PrepareRun, as in examples/minimal of
			// watchcache.
			return devserver.Run(command.Context(), runDir, options, config, newServer, func(url, kubeconfig string) {
				fmt.Printf("Serving %s on %s, kubeconfig %s\n", version, url, kubeconfig)
			})
		},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w; --help lists the flags", err) })
	options.AddFlags(command.Flags())
	command.Flags().StringVar(&runDir, "run-dir", runDir, "The directory for credentials and kubeconfig.")
	command.SetContext(genericapiserver.SetupSignalContext())
	os.Exit(cli.Run(command))
}
